import numpy as np
from numpy.typing import NDArray

def registrations() -> dict[str, object]: ...
def build_info() -> dict[str, object]: ...
def build_plan(
    ids: NDArray[np.integer],
    drop: bool,
    out_ids: NDArray[np.int32],
    indptr: NDArray[np.int32],
    perm: NDArray[np.int32],
    tasks: NDArray[np.int32],
) -> tuple[int, bool, bool]: ...
def build_plan_from_indptr(
    ids: NDArray[np.int32],
    indptr: NDArray[np.int32],
    perm: NDArray[np.int32],
    tasks: NDArray[np.int32],
) -> tuple[int, bool, bool]: ...
