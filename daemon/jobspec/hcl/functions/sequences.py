"""Functions on lists, sets, maps and objects."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product

from daemon.jobspec.hcl.functions.registry import (
    any_value,
    function,
    items_of,
    number,
    per_part,
    strings_of,
    text,
    text_list,
    texts,
    whole_number,
)
from daemon.jobspec.hcl.number import Number
from daemon.jobspec.hcl.scope import ArgumentFault, FunctionFault, HclFunction, Parameter
from daemon.jobspec.hcl.values import (
    ANY,
    CollectionType,
    ConversionError,
    Type,
    Value,
    attributes,
    convert,
    elements,
    equal,
    kind_of,
    list_of,
    make_set,
    set_of,
    sort_key,
    type_of,
    unify,
)

MAX_RANGE = 1024  # maximum length of a `range` result
MAX_PRODUCT = 100_000  # maximum length of a `setproduct` result

_LIST = Parameter("list", list_of(ANY))
_NO_COLLECTION = "collection must be a list, a map or a tuple"


def _length(value: Value) -> Value:
    items = elements(value)
    if items is not None:
        return len(items)
    if isinstance(value, CollectionType):
        return len(value.items)
    raise FunctionFault(_NO_COLLECTION)


def _named(value: Value) -> Mapping[str, Value]:
    members = attributes(value)
    if members is None:
        raise ArgumentFault(0, "must have map or object type")
    return members


def _keys(value: Value) -> Value:
    keys = sorted(_named(value))
    return text_list(keys) if isinstance(value, CollectionType) else tuple(keys)


def _values(value: Value) -> Value:
    members = _named(value)
    return _same_kind(value, tuple([members[key] for key in sorted(members)]))


def _same_kind(value: Value, items: tuple[Value, ...]) -> Value:
    """Return elements as a list if they come from a collection, otherwise as a tuple."""
    return (
        CollectionType("list", value.element, items) if isinstance(value, CollectionType) else items
    )


def _merge(*values: Value) -> Value:
    merged: dict[str, Value] = {}
    for value in values:
        if value is None:
            continue
        members = attributes(value)
        if members is None:
            raise FunctionFault(f'arguments must be maps or objects, got "{kind_of(value)}"')
        merged.update(members)
    kinds = [type_of(value) for value in values if value is not None]
    first = kinds[0] if kinds else ANY
    if first.kind == "map" and first.element and all(kind == first for kind in kinds):
        return CollectionType("map", first.element, merged)
    return merged


def _concat(*values: Value) -> Value:
    if not values:
        raise FunctionFault("at least one argument is required")
    for index, value in enumerate(values):
        if kind_of(value) not in ("list", "tuple"):
            kind = kind_of(value)
            raise ArgumentFault(index, f"all arguments must be lists or tuples; got {kind}")
    joined = tuple([element for value in values for element in items_of(value)])
    kinds = [type_of(value) for value in values]
    if kinds[0].kind == "list" and all(kind == kinds[0] for kind in kinds):
        return _same_kind(values[0], joined)
    return joined


def _contains(value: Value, expected: Value) -> Value:
    items = elements(value)
    if items is None:
        raise FunctionFault("argument must be list, tuple, or set")
    return any(equal(element, expected) for element in items)


def _distinct(value: CollectionType) -> Value:
    unique = {sort_key(element): element for element in reversed(items_of(value))}
    sorted_keys = list({sort_key(element): None for element in items_of(value)})
    return _same_kind(value, tuple([unique[key] for key in sorted_keys]))


def _sequence(value: Value) -> tuple[Value, ...]:
    items = elements(value)
    if items is None or kind_of(value) == "set":
        raise ArgumentFault(0, "must be a list or tuple value")
    return items


def _element(value: Value, index: Value) -> Value:
    items = _sequence(value)
    if not items:
        raise FunctionFault("cannot use element function with an empty list")
    return items[whole_number(index, "the index") % len(items)]


def _flatten(value: Value) -> Value:
    if elements(value) is None:
        raise FunctionFault("can only flatten lists, sets and tuples")
    flat: list[Value] = []
    waiting = list(reversed(items_of(value)))
    while waiting:
        element = waiting.pop()
        inner = elements(element)
        if inner is None:
            flat.append(element)
        else:
            waiting.extend(reversed(inner))
    return tuple(flat)


def _index(value: Value, key: Value) -> Value:
    items = elements(value)
    if items is not None and kind_of(value) != "set":
        if not isinstance(key, int) or isinstance(key, bool):
            raise FunctionFault("key for tuple must be number")
        if not 0 <= key < len(items):
            raise FunctionFault(f"key must be between 0 and {len(items)} inclusive")
        return items[key]
    if not isinstance(value, CollectionType) or not isinstance(value.items, dict):
        raise FunctionFault(_NO_COLLECTION)
    if not isinstance(key, str):
        raise FunctionFault("key for map must be string")
    if key not in value.items:
        raise FunctionFault("the given key does not identify an element in this collection value")
    return value.items[key]


def _lookup(value: Value, key: str, default: Value) -> Value:
    members = attributes(value)
    if members is None:
        raise ArgumentFault(0, "lookup() requires a map as the first argument")
    if isinstance(value, CollectionType):
        try:
            default = convert(default, value.element)
        except ConversionError as error:
            raise ArgumentFault(
                2, "the default value must have the same type as the map elements"
            ) from error
    return members.get(key, default)


def _range(*limits: Number) -> Value:
    start: Number = 0
    if not 1 <= len(limits) <= 3:
        raise FunctionFault("must have one, two, or three arguments")
    end = limits[0]
    if len(limits) > 1:
        start, end = limits[0], limits[1]
    step: Number = limits[2] if len(limits) > 2 else (1 if start <= end else -1)
    if step > 0 and end < start:
        raise ArgumentFault(1, "end must be greater than start when step is positive")
    if step < 0 and end > start:
        raise ArgumentFault(1, "end must be less than start when step is negative")
    if start != end and (step == 0 or abs(Fraction(end - start) / step) > MAX_RANGE):
        raise FunctionFault(
            f"more than {MAX_RANGE} values were generated; either decrease the difference "
            "between start and end or use a smaller step"
        )
    values: list[Value] = []
    current: Number = start
    while (current < end) if step > 0 else (current > end):
        values.append(current.numerator if current.denominator == 1 else current)
        current += step
    return tuple(values)


def _slice(value: Value, start: Value, end: Value) -> Value:
    items = _sequence(value)
    first, last = whole_number(start, "the start index"), whole_number(end, "the end index")
    if first < 0:
        raise ArgumentFault(1, "start index must not be less than zero")
    if last > len(items):
        raise ArgumentFault(2, "end index must not be greater than the length of the list")
    if first > last:
        raise ArgumentFault(1, "start index must not be greater than end index")
    return _same_kind(value, items[first:last])


def _zipmap(keys: Value, values: Value) -> Value:
    names, items = strings_of(keys), _zipped(values)
    if len(names) != len(items):
        raise FunctionFault(
            f"number of keys ({len(names)}) does not match number of values ({len(items)})"
        )
    mapping = dict(zip(names, items, strict=True))
    if isinstance(values, CollectionType):
        return CollectionType("map", values.element, mapping)
    return mapping


def _zipped(value: Value) -> tuple[Value, ...]:
    if kind_of(value) not in ("list", "tuple"):
        raise ArgumentFault(1, "values argument must be a list or tuple value")
    return items_of(value)


def _coalesce(*values: Value) -> Value:
    common = unify([type_of(value) for value in values]) if values else None
    if common is None:
        raise FunctionFault("all arguments must have the same type")
    for value in values:
        if value is not None:
            return convert(value, common)
    raise FunctionFault("no non-null arguments")


def _coalescelist(*values: Value) -> Value:
    if not values:
        raise FunctionFault("at least one argument is required")
    for value in values:
        if kind_of(value) not in ("list", "tuple"):
            raise FunctionFault("coalescelist arguments must be lists or tuples")
        if items_of(value):
            return value
    raise FunctionFault("no non-null arguments")


def _chunklist(value: Value, size: Value) -> Value:
    length, items = whole_number(size, "the size"), items_of(value)
    if length < 0:
        raise ArgumentFault(1, "the size argument must be positive")
    if not items:
        return ()
    length = length or len(items)
    return tuple(
        [_same_kind(value, items[start : start + length]) for start in range(0, len(items), length)]
    )


def _of_sets(join: Callable[[list[dict[object, Value]]], list[Value]]) -> Callable[..., Value]:
    def run(*values: CollectionType) -> Value:
        if not values:
            raise FunctionFault("at least one set is required")
        element = unify([value.element for value in values])
        if element is None:
            raise FunctionFault("given sets must all have compatible element types")
        converted = [items_of(convert(value, set_of(element))) for value in values]
        keyed: list[dict[object, Value]] = [
            {sort_key(member): member for member in items} for items in converted
        ]
        return make_set(element, join(keyed))

    return run


def _union(sets: list[dict[object, Value]]) -> list[Value]:
    return [element for set_ in sets for element in set_.values()]


def _intersection(sets: list[dict[object, Value]]) -> list[Value]:
    first, *further = sets
    return [
        element
        for key, element in first.items()
        if all(key in further_set for further_set in further)
    ]


def _setproduct(*values: Value) -> Value:
    if len(values) < 2:
        raise FunctionFault("at least two arguments are required")
    size = 1
    for index, value in enumerate(values):
        items = elements(value)
        if items is None:
            raise ArgumentFault(index, "a set or a list is required")
        size *= len(items)
    if size > MAX_PRODUCT:
        raise FunctionFault(f"there are more than {MAX_PRODUCT} combinations")
    combined: Sequence[Value] = [
        tuple(combination) for combination in product(*map(items_of, values))
    ]
    if any(kind_of(value) != "set" for value in values):
        return tuple(combined)
    kinds = Type("tuple", items=tuple([type_of(value).element or ANY for value in values]))
    return make_set(kinds, combined)


FUNCTIONS: dict[str, HclFunction] = {
    "length": function(_length, any_value("collection")),
    "keys": function(_keys, any_value("inputMap")),
    "values": function(_values, any_value("values")),
    "merge": function(_merge, rest=any_value("maps", may_be_null=True)),
    "concat": function(_concat, rest=any_value("seqs")),
    "contains": function(_contains, any_value("list"), any_value("value", may_be_null=True)),
    "distinct": function(_distinct, _LIST, cost=per_part),
    "element": function(_element, any_value("list"), number("index")),
    "flatten": function(_flatten, any_value("list")),
    "index": function(_index, any_value("collection"), any_value("key")),
    "lookup": function(
        _lookup, any_value("inputMap"), text("key"), any_value("default", may_be_null=True)
    ),
    "range": function(_range, rest=number("params")),
    "slice": function(_slice, any_value("list"), number("start_index"), number("end_index")),
    "sort": function(lambda value: text_list(sorted(strings_of(value))), texts("list")),
    "zipmap": function(_zipmap, texts("keys"), any_value("values")),
    "coalesce": function(_coalesce, rest=any_value("vals", may_be_null=True)),
    "coalescelist": function(_coalescelist, rest=any_value("vals", may_be_null=True)),
    "compact": function(
        lambda value: text_list([string for string in strings_of(value) if string]), texts("list")
    ),
    "chunklist": function(_chunklist, _LIST, number("size")),
    "setunion": function(_of_sets(_union), rest=Parameter("sets", set_of(ANY)), cost=per_part),
    "setintersection": function(
        _of_sets(_intersection), rest=Parameter("sets", set_of(ANY)), cost=per_part
    ),
    "setproduct": function(_setproduct, rest=any_value("sets")),
}
