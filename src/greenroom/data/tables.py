"""Small operations on Arrow tables that `sources` and `reconcile` share."""

from __future__ import annotations

import pyarrow as pa

from greenroom.errors import DataError


def with_constant(table: pa.Table, name: str, value: str) -> pa.Table:
    """The table with one more column that holds `value` in every row."""
    return table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))


def concatenate(parts: list[tuple[str, pa.Table]]) -> pa.Table:
    """All rows of the named tables; `DataError` names one whose columns are not the first's.

    A column whose type differs between files becomes the wider type, or text where none is.
    """
    first_name, first = parts[0]
    columns = first.column_names
    for name, table in parts[1:]:
        missing = [c for c in columns if c not in table.column_names]
        extra = [c for c in table.column_names if c not in columns]
        if missing or extra:
            lacks = f" lacks {', '.join(map(repr, missing))}" if missing else ""
            has = f" has {', '.join(map(repr, extra))} besides" if extra else ""
            raise DataError(
                f"{name}: its columns are not those of {first_name}: it{lacks}"
                f"{' and' if lacks and has else ''}{has}; files read together must share columns"
            )
    tables = [table.select(columns) for _, table in parts]
    for column in columns:
        if not _have_common_type(column, tables):
            tables = [_with_texts(table, column) for table in tables]
    return pa.concat_tables(tables, promote_options="permissive")


def _have_common_type(column: str, tables: list[pa.Table]) -> bool:
    schemas = [pa.schema([table.schema.field(column)]) for table in tables]
    try:
        pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def _with_texts(table: pa.Table, column: str) -> pa.Table:
    texts = pa.array(as_texts(table[column], column), pa.string())
    return table.set_column(table.column_names.index(column), column, texts)


def as_texts(column: pa.ChunkedArray, name: str) -> list[str | None]:
    """The column's values as texts: whole numbers without `.0`, truth values in lower case.

    `DataError` for what has no obvious text: lists, structures, raw bytes.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return [None] * len(column)
    values = column.to_pylist()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return list(values)
    if pa.types.is_boolean(kind):
        return [None if v is None else str(v).lower() for v in values]
    if pa.types.is_integer(kind):
        return [None if v is None else str(v) for v in values]
    if pa.types.is_floating(kind):
        return [None if v is None or v != v else _number(v) for v in values]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return [None if v is None else str(v) for v in values]
    raise DataError(f"column {name!r} holds {kind}, not texts or numbers")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
