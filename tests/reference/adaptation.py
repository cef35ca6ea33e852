"""Parameters that adapt to rows by gradient descent, and the derivative of a later loss through that, in float64.

Steps are `V_j+1 = V_j - rate (grad L_j(V_j) + 2 penalty (V_j - W))` from `V_0 = W`, of adapted parameters alone.
"""

import numpy as np

from tests.reference.perceptron import gradient, hessian_product, step


def descend(params, supports, *, rate, penalty=0.0, momentum=0.0, adapted=lambda path: True):
    """The parameters before each step and after the last one.

        Args:
    params: Parameters W before the first step.
          supports: Rows, classes of the rows and weights of the rows in the loss, for every step.
          rate: Learning rate of the steps.
          penalty: Weight of the squared distance from W (lambda).
          momentum: Factor on the direction of the last step, which is added to that of the next.
          adapted: Function that says of a path whether the parameter is adapted.
    """
    moved, speed = [params], {path: np.zeros_like(leaf) for path, leaf in params.items()}
    for x, y, weights in supports:
        slope = gradient(moved[-1], x, y, weights)
        pull = {path: 2 * penalty * (leaf - params[path]) for path, leaf in moved[-1].items()}
        speed = {path: momentum * speed[path] + slope[path] + pull[path] for path in params}
        moved.append(step(moved[-1], speed, rate, adapted))
    return moved


def gradient_through(params, supports, query, *, rate, second_order, penalty=0.0, adapted=lambda path: True):
    """The gradient of the mean loss of a query, rows and classes, by the adapted parameters or by W.

    By W it is taken backwards. A step has the derivative `u - rate (H(V_j) + 2 penalty) M u` by `V_j` along u, and
    `2 rate penalty M u` by W itself, where M leaves out what is not adapted.
    """
    moved = descend(params, supports, rate=rate, penalty=penalty, adapted=adapted)
    slope_of_query = gradient(moved[-1], *query)
    if not second_order:
        return slope_of_query
    by_start = {path: np.zeros_like(leaf) for path, leaf in params.items()}
    for before, (x, y, weights) in zip(reversed(moved[:-1]), reversed(supports), strict=True):
        some = {path: leaf if adapted(path) else np.zeros_like(leaf) for path, leaf in slope_of_query.items()}
        curved = hessian_product(before, some, x, y, weights)
        by_start = {path: leaf + 2 * rate * penalty * some[path] for path, leaf in by_start.items()}
        slope_of_query = {
            path: leaf - rate * (curved[path] + 2 * penalty * some[path]) for path, leaf in slope_of_query.items()
        }
    return {path: leaf + by_start[path] for path, leaf in slope_of_query.items()}
