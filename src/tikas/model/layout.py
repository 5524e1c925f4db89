"""How a level's tensors lie: ``(*members, rows, units)``, or for maps ``(*members, rows, channels, height, width)``.

Everything in `tikas.model` is written for one ladder. The member dimensions in front are never named: parameters carry
them in front too, and broadcasting does the rest. That is all it takes for the engine to train forty seeds as one.
"""

from torch import Tensor


def per_unit(parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Lay a parameter ``(*members, units)`` out against a batch of the level's `shape`.

    Examples
    --------
    >>> import torch
    >>> per_unit(torch.zeros(7, 3), (3,)).shape, per_unit(torch.zeros(3), (3, 8, 8)).shape
    (torch.Size([7, 1, 3]), torch.Size([1, 3, 1, 1]))
    """
    parameter = parameter.unsqueeze(-2)
    return parameter if len(shape) == 1 else parameter[(...,) + (None,) * (len(shape) - 1)]


def per_member(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Lay a value of each member, ``(*members,)``, out against a batch of the level's `shape`.

    Examples
    --------
    >>> import torch
    >>> per_member(torch.zeros(7), (3,)).shape
    torch.Size([7, 1, 1])
    """
    return value[(...,) + (None,) * (len(shape) + 1)]


def rows_per_unit(parameter: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The rows of a parameter ``(*members, rows, units)``, each laid out against a batch of the level's `shape`.

    Examples
    --------
    >>> import torch
    >>> [tuple(row.shape) for row in rows_per_unit(torch.zeros(2, 3), (3,))]
    [(1, 3), (1, 3)]
    """
    return per_unit(parameter, shape).unbind(-2 - len(shape))


def rows_dim(shape: tuple[int, ...]) -> int:
    """Which dimension of a batch counts its rows.

    Examples
    --------
    >>> rows_dim((3,)), rows_dim((3, 8, 8))
    (-2, -4)
    """
    return -1 - len(shape)


def batch_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions that a unit's statistics run over: the rows, and on maps the positions.

    Examples
    --------
    >>> batch_dims((3,)), batch_dims((3, 8, 8))
    ((-2,), (-4, -2, -1))
    """
    return (rows_dim(shape), *range(1 - len(shape), 0))


def all_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Every dimension of a batch but the members'.

    Examples
    --------
    >>> all_dims((3,)), all_dims((3, 8, 8))
    ((-2, -1), (-4, -3, -2, -1))
    """
    return tuple(range(rows_dim(shape), 0))


def first_rows(x: Tensor, count: int, shape: tuple[int, ...]) -> Tensor:
    """The first `count` rows of a batch of the level's `shape`, or all if there are no more than that.

    Examples
    --------
    >>> import torch
    >>> first_rows(torch.zeros(7, 20, 3), 5, (3,)).shape
    torch.Size([7, 5, 3])
    """
    rows = rows_dim(shape)
    return x if x.shape[rows] <= count else x.narrow(rows, 0, count)
