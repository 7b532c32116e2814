"""Array namespaces: NumPy, CuPy, PyTorch and JAX, whose arrays may be parts of a DistributedArray. An entry for each has what
it calls differently; `xp` is the module itself, as in the array API standard."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property, wraps
from typing import Any, TypeVar, cast

import numpy as np

from jali.comm.current_device import current_device
from jali.comm.device_of_array import device_of
from jali.errors import LayoutError, ParameterError
from jali.files import shown, value_shown

ANYWHERE: AbstractContextManager[None] = nullcontext()
PIECE = 1 << 15  # elements of a sum in 32 bits


def _device_of(x: Any) -> AbstractContextManager[None]:
    """Inside, the device of an array is the current one: libraries exchange arrays by DLPack there."""
    device = device_of(x)
    return ANYWHERE if device is None else current_device(*device)


class ArrayNamespace:
    """NumPy, and the libraries whose functions have its names."""

    immutable = False  # whether arrays never change, so that what is assigned makes another one
    complete = False  # whether its sums are those of all ranks

    def __init__(self, name: str, module: str) -> None:
        self.name, self._module = name, module

    def find(self) -> None:
        """Raises ImportError where it is not installed."""
        self.xp  # noqa: B018

    def part(self, layout: Any, dtype: Any) -> Any:
        """A new part of an array of this layout, all 0."""
        return self.xp.zeros(layout.local_shape, dtype=self._dtype(dtype))

    def _dtype(self, dtype: Any) -> Any:
        """The library's own name of a type of elements."""
        return dtype

    @cached_property
    def xp(self) -> Any:
        """The module itself."""
        return importlib.import_module(self._module)

    @property
    def installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(self._module) is not None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array whose values are not set."""
        return self.xp.empty(shape, dtype=dtype)

    def empty_beside(self, x: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """A new array where `x` is, of its type or another one, whose values are not set."""
        return self.xp.empty(shape, dtype=x.dtype if dtype is None else dtype)

    def zeros_beside(self, x: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """A new array of zeros where `x` is, of its type or another one."""
        zeros = self.empty_beside(x, shape, dtype)
        zeros[...] = 0
        return zeros

    def copy(self, x: Any) -> Any:
        """C-ordered."""
        return x.copy() if x.flags.c_contiguous else self.xp.ascontiguousarray(x)

    def contiguous(self, x: Any) -> Any:
        """C-ordered; a copy only where it has to be."""
        return self.xp.ascontiguousarray(x)

    def zeros_like(self, x: Any) -> Any:
        """A new array of the same shape and type."""
        return self.xp.zeros_like(x)

    def empty_like(self, x: Any) -> Any:
        """A new array of the same shape and type."""
        return self.xp.empty_like(x)

    def astype(self, x: Any, dtype: Any) -> Any:
        """A copy of another type."""
        return x.astype(dtype)

    def imag(self, x: Any) -> Any:
        """Imaginary parts, zeros of a real array."""
        return x.imag

    def ravel(self, x: Any, order: str = "C") -> Any:
        """A flat copy."""
        return x.flatten(order)

    def transpose(self, x: Any, order: tuple[int, ...]) -> Any:
        """Its dimensions in another order; not a copy."""
        return x.transpose(order)

    def reduce(self, x: Any, name: str, axes: tuple[int, ...], dtype: Any = None) -> Any:
        """`name` (sum, prod, max, min, any, all) along these axes, its elements converted to another type if there is one."""
        function = getattr(x, name)
        return function(axis=axes) if dtype is None else function(axis=axes, dtype=dtype)

    def dot(self, x: Any, y: Any, conjugate: bool) -> Any:
        """Sum of products, as a number of NumPy. Floats of 16 bits are added in 32."""
        x, y = self._widened(x).reshape(-1), self._widened(y).reshape(-1)
        return self.number((self.xp.vdot if conjugate else self.xp.dot)(x, y))

    def _widened(self, x: Any) -> Any:
        """Floats of 16 bits in 32."""
        if x.dtype.itemsize != 2 or not str(x.dtype).endswith("float16"):
            return x
        return self.astype(x, np.float32)

    def squares(self, x: Any) -> Any:
        """Sum of |x|^2, as a real number of NumPy. BLAS makes nan of it where x is complex and squares overflow, since imaginary parts
        of the products are inf - inf."""
        if is_complex(x):
            x = self.as_real(x)
        return self.dot(x, x, False)

    def as_real(self, x: Any) -> Any:
        """Real and imaginary parts of complex numbers, side by side in a flat array."""
        return self.contiguous(x).reshape(-1).view(x.real.dtype)

    def number(self, x: Any) -> Any:
        """What an array of no dimension, or a number, is on the host."""
        return x.item() if hasattr(x, "item") and not isinstance(x, np.generic) else x

    def ufunc(self, function: np.ufunc) -> Callable[..., Any]:
        """What does the same with arrays of this library."""
        return function

    def put(self, x: Any, where: Any, value: Any) -> Any:
        """`x[where] = value`; the array that has these values, which is x unless its library has immutable ones."""
        x[where] = value
        return x

    def mutable_view(self, x: Any) -> Any:
        """The same memory as an array that functions of NumPy's kind take and write; x itself where it is one."""
        return x

    def from_mutable(self, x: Any) -> Any:
        """The inverse of `mutable_view`, for a new array."""
        return x

    def made_of(self, x: Any, function: Callable[[Any], Any]) -> Any:
        """A new array that a function makes of the mutable view of x."""
        return self.from_mutable(function(self.mutable_view(x)))

    def sharing(self, x: Any) -> Any:
        """The array of another library as one of this, in the same memory. Raises LayoutError where that cannot be."""
        whose = namespace_of(x).name
        if whose == "jali":
            x = x.array
        try:
            with _device_of(x):
                return self.xp.from_dlpack(x.detach() if hasattr(x, "detach") else x)
        except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
            raise LayoutError(
                f"{self.name} cannot use the memory of an array of {whose} without a copy: {error}"
            ) from None

    def to_host(self, x: Any) -> np.ndarray:
        """A NumPy array of its values."""
        return np.asarray(x)

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        """The values of a NumPy array where `like` is."""
        return self.xp.asarray(x)

    def empty_on(self, ordinal: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array on the device of this number, whose values are not set."""
        raise ParameterError(f"{self.name} has no arrays on devices")

    def of_memory(self, memory: Any, dtype: Any) -> Any:
        """A `jali.comm.DeviceArray` as an array of this library and a type of its, in the same memory: booleans are bytes for jali."""
        with _device_of(memory):
            found = self.xp.from_dlpack(memory)
        return found if found.dtype == dtype else found.view(dtype)

    def address(self, x: Any) -> int:
        """Of its first element."""
        return int(x.ctypes.data)

    def strides(self, x: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(stride // x.dtype.itemsize for stride in x.strides)

    def stream(self, x: Any) -> int:
        """The handle of the stream on which this library works on the array's device, for this thread."""
        raise ParameterError(f"{self.name} has no streams")

    def wait(self, x: Any) -> None:
        """For what is on that stream; at once on the host."""

    def trim(self, x: Any) -> None:
        """Give memory that is kept for new arrays, where `x` is, back to the device; nothing on the host."""

    def where(self, x: Any) -> AbstractContextManager[Any]:
        """Inside, this library works where the array is."""
        return ANYWHERE

    def on_stream(self, x: Any, stream: int) -> AbstractContextManager[Any]:
        """Inside, this library works on the stream of this handle, on the array's device."""
        raise ParameterError(f"{self.name} has no streams")


class NumPy(ArrayNamespace):
    """Arrays of the host, and of all libraries without an entry."""

    def dot(self, x: Any, y: Any, conjugate: bool) -> Any:
        x, y = self._widened(x).reshape(-1), self._widened(y).reshape(-1)
        if x.size <= PIECE or x.dtype.char not in "fF" or y.dtype.char not in "fF":
            return super().dot(x, y, conjugate)
        # 32 bits would not hold a long sum: pieces are added in 64
        whole = x.size - x.size % PIECE
        last = super().dot(x[whole:], y[whole:], conjugate)
        rows, columns = x[:whole].reshape(-1, PIECE), y[:whole].reshape(-1, PIECE)
        if conjugate and x.dtype.char == "F":
            return last + sum(super(NumPy, self).dot(r, c, True) for r, c in zip(rows, columns, strict=True))
        products = np.matmul(rows[:, None, :], columns[:, :, None])  # all of them in one call
        return last + self.number(products.sum(dtype=np.result_type(products, np.float64)))


class CuPy(ArrayNamespace):
    """Arrays on CUDA devices."""

    def empty_on(self, ordinal: int, shape: tuple[int, ...], dtype: Any) -> Any:
        with self.xp.cuda.Device(ordinal):
            return self.xp.empty(shape, dtype=dtype)

    def address(self, x: Any) -> int:
        return int(x.data.ptr)

    def stream(self, x: Any) -> int:
        with x.device:
            return int(self.xp.cuda.get_current_stream().ptr)

    def wait(self, x: Any) -> None:
        with x.device:
            self.xp.cuda.get_current_stream().synchronize()

    def trim(self, x: Any) -> None:
        with x.device:
            importlib.import_module("cupy.fft").config.get_plan_cache().clear()  # with work areas
            self.xp.get_default_memory_pool().free_all_blocks()

    def where(self, x: Any) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = x.device
        return found

    def on_stream(self, x: Any, stream: int) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self.xp.cuda.ExternalStream(stream)
        return found

    def empty_beside(self, x: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
        with x.device:  # which need not be the current one
            return super().empty_beside(x, shape, dtype)

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        with like.device:
            return super().from_host(x, like)

    def to_host(self, x: Any) -> np.ndarray:
        with x.device:
            return np.asarray(self.xp.asnumpy(x))


def _where_it_is(name: str) -> Callable[..., Any]:
    """A method of all libraries for CuPy, which works on the current device, not the array's."""
    method = getattr(ArrayNamespace, name)

    @wraps(method)
    def on_its_device(self: CuPy, x: Any, *arguments: Any, **named: Any) -> Any:
        with x.device:
            return method(self, x, *arguments, **named)

    return on_its_device


for _name in (
    "as_real", "astype", "contiguous", "copy", "dot", "empty_like", "imag", "put", "ravel", "reduce", "squares", "zeros_beside",
    "zeros_like",
):  # fmt: skip
    setattr(CuPy, _name, _where_it_is(_name))

TORCHS_NAMES = {"absolute": "abs", "conjugate": "conj_physical", "power": "pow", "invert": "bitwise_not"}


class Torch(ArrayNamespace):
    """Tensors, on any device."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.empty(shape, dtype=self._dtype(dtype))

    def empty_beside(self, x: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
        return x.new_empty(shape, dtype=x.dtype if dtype is None else self._dtype(dtype))

    def _dtype(self, dtype: Any) -> Any:
        return dtype if isinstance(dtype, self.xp.dtype) else getattr(self.xp, np.dtype(dtype).name)

    def copy(self, x: Any) -> Any:
        return x.clone(memory_format=self.xp.contiguous_format)

    def contiguous(self, x: Any) -> Any:
        return (
            x.resolve_conj().resolve_neg().contiguous()
        )  # conjugates are marks at first, which no other library reads

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.to(self._dtype(dtype), copy=True)

    def imag(self, x: Any) -> Any:
        return x.imag if x.is_complex() else self.xp.zeros_like(x)

    def ravel(self, x: Any, order: str = "C") -> Any:
        if order == "F":
            x = x.permute(*reversed(range(x.ndim)))
        return x.reshape(-1).clone()

    def transpose(self, x: Any, order: tuple[int, ...]) -> Any:
        return x.permute(order)

    def reduce(self, x: Any, name: str, axes: tuple[int, ...], dtype: Any = None) -> Any:
        if len(axes) != 1:  # functions of several axes are few
            kept = [axis for axis in range(x.ndim) if axis not in axes]
            x = (
                x.permute(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), -1)
                if axes
                else x[..., None]
            )
            axes = (-1,)
        if name in ("max", "min"):
            return getattr(self.xp, f"a{name}")(x, axes[0])
        return getattr(self.xp, name)(x, axes[0], **({} if dtype is None else {"dtype": self._dtype(dtype)}))

    def dot(self, x: Any, y: Any, conjugate: bool) -> Any:
        x, y = self._widened(x), self._widened(y)
        common = self.xp.promote_types(x.dtype, y.dtype)
        flat = x.reshape(-1).to(common), y.reshape(-1).to(common)
        return self.number(self.xp.vdot(*flat) if conjugate else self.xp.dot(*flat))

    def as_real(self, x: Any) -> Any:
        return self.xp.view_as_real(self.contiguous(x))

    def ufunc(self, function: np.ufunc) -> Callable[..., Any]:
        found = getattr(self.xp, TORCHS_NAMES.get(function.__name__, function.__name__), None)
        if found is None:
            raise ParameterError(f"PyTorch has no {function.__name__}")

        def call(*arguments: Any, out: tuple[Any, ...] | None = None, **named: Any) -> Any:
            return found(*arguments, **named) if out is None else found(*arguments, out=out[0], **named)

        return call

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x.detach().cpu().numpy())

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        return self.xp.from_numpy(x).to(like.device)

    def empty_on(self, ordinal: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.empty(shape, dtype=self._dtype(dtype), device=f"cuda:{ordinal}")

    def address(self, x: Any) -> int:
        return int(x.data_ptr())

    def strides(self, x: Any) -> tuple[int, ...]:
        return tuple(x.stride())

    def stream(self, x: Any) -> int:
        return int(self.xp.cuda.current_stream(x.device).cuda_stream)

    def wait(self, x: Any) -> None:
        if x.device.type == "cuda":
            self.xp.cuda.current_stream(x.device).synchronize()

    def trim(self, x: Any) -> None:
        if x.device.type == "cuda":
            with self.xp.cuda.device(x.device):
                self.xp.cuda.empty_cache()

    def on_stream(self, x: Any, stream: int) -> AbstractContextManager[Any]:
        cuda = self.xp.cuda
        found: AbstractContextManager[Any] = cuda.stream(cuda.ExternalStream(stream, device=x.device))
        return found


class Jax(ArrayNamespace):
    """Arrays of JAX on the host. They never change: an assignment makes another one, which replaces the part."""

    immutable = True

    @cached_property
    def xp(self) -> Any:
        importlib.import_module("jax")
        return importlib.import_module("jax.numpy")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.zeros(shape, dtype=self._dtype(dtype))

    def empty_beside(self, x: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
        return self.empty(shape, x.dtype if dtype is None else dtype)

    zeros_beside = empty_beside

    def empty_like(self, x: Any) -> Any:
        return self.xp.zeros_like(x)

    def _dtype(self, dtype: Any) -> Any:
        kept = importlib.import_module("jax").dtypes.canonicalize_dtype(dtype)
        if kept != np.dtype(dtype):
            raise ParameterError(
                f"JAX makes {kept} of {np.dtype(dtype)} unless jax.config.update('jax_enable_x64', True) has been called; or give "
                f"dtype={str(kept)!r}"
            )
        return kept

    def copy(self, x: Any) -> Any:
        return x

    def contiguous(self, x: Any) -> Any:
        return x

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.astype(self._dtype(dtype))

    def ravel(self, x: Any, order: str = "C") -> Any:
        return x.ravel(order)

    def dot(self, x: Any, y: Any, conjugate: bool) -> Any:
        return NUMPY.dot(self.mutable_view(x), self.mutable_view(y), conjugate)

    def squares(self, x: Any) -> Any:
        return NUMPY.squares(self.mutable_view(x))

    def ufunc(self, function: np.ufunc) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(self.xp, function.__name__, None)
        if found is None:
            raise ParameterError(f"JAX has no {function.__name__}")
        return found

    def put(self, x: Any, where: Any, value: Any) -> Any:
        return x.at[where].set(value)

    def mutable_view(self, x: Any) -> Any:
        if any(device.platform != "cpu" for device in x.devices()):
            raise LayoutError(
                "parts that are arrays of JAX are on the host; on a device take CuPy or PyTorch, x.as_engine('cupy')"
            )
        return np.asarray(x)

    def from_mutable(self, x: Any) -> Any:
        return self.xp.array(x)  # a copy: the maker of x may write to it once more

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        return self.xp.array(x)


NUMPY = NumPy("numpy", "numpy")
NAMESPACES = {
    "numpy": NUMPY,
    "cupy": CuPy("cupy", "cupy"),
    "torch": Torch("torch", "torch"),
    "jax": Jax("jax", "jax"),
}  # and "jali", of `jali.arrays.fields`
_CLASSES = {
    ("numpy", "ndarray"): "numpy",
    ("cupy", "ndarray"): "cupy",
    ("torch", "Tensor"): "torch",
    ("jaxlib", "ArrayImpl"): "jax",
    ("jali", "FieldPart"): "jali",
}


def namespace_by_name(name: str) -> ArrayNamespace:
    """Raises ParameterError for an unknown one, and for one that is not installed."""
    if not isinstance(name, str) or name not in NAMESPACES:
        raise ParameterError(f"engine {value_shown(name)} is none; there are {', '.join(NAMESPACES)}")
    namespace = NAMESPACES[name]
    try:
        namespace.find()
    except ImportError as error:
        raise ParameterError(f"engine {value_shown(name)} is not installed: {error}") from None
    return namespace


@cache
def _namespace_of_class(kind: Hashable) -> ArrayNamespace | None:
    for base in getattr(kind, "__mro__", ()):
        name = _CLASSES.get((base.__module__.partition(".")[0], base.__name__))
        if name is not None:
            return NAMESPACES[name]
    return None


def namespace_of(x: Any) -> ArrayNamespace:
    """The namespace of an array. Raises ParameterError where it has none."""
    kind: Any = type(x)
    namespace = _namespace_of_class(kind)
    if namespace is None:
        raise ParameterError(
            f"a part of a DistributedArray is an array of {', '.join(NAMESPACES)}, not {type(x).__name__}"
        )
    return namespace


Method = TypeVar("Method", bound=Callable[..., Any])


def where_its_part_is(method: Method) -> Method:
    """A method of a distributed array inside which its library works where the part is: CuPy works on the current device, and
    issues work on a stream of it, which does not wait for the streams of the array's device."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        local = self._local
        if type(local) is np.ndarray:
            return method(self, *arguments, **named)
        with namespace_of(local).where(local):
            return method(self, *arguments, **named)

    return cast(Method, call)


@contextmanager
def elements_of(engine: str, dtype: Any) -> Iterator[None]:
    """Converts a library's error about an invalid element type to ParameterError."""
    try:
        yield
    except (TypeError, AttributeError, UnicodeError, SyntaxError) as error:
        raise ParameterError(
            f"{value_shown(dtype)} is no type of elements of {engine}"
            + (f": {shown(error, 100)}" if isinstance(dtype, str | type) else "")
        ) from None


def dtype_of_numpy(dtype: Any) -> np.dtype[Any]:
    """A type of elements, of NumPy or PyTorch, as NumPy calls it. Raises ParameterError for anything else."""
    if isinstance(dtype, np.dtype):
        return dtype
    name = str(dtype)
    try:
        return np.dtype(name.removeprefix("torch.") if name.startswith("torch.") else dtype)
    except (TypeError, ValueError, SyntaxError):
        raise ParameterError(
            f"{value_shown(dtype)} is no type of elements that NumPy has; take one that it has, such as float32, or convert arrays (x.astype)"
        ) from None


def numpy_dtype(x: Any) -> np.dtype[Any]:
    """The type of an array's elements as NumPy calls it."""
    return dtype_of_numpy(x.dtype)


def bytes_of(x: Any) -> int:
    """Of its elements."""
    return math.prod(x.shape) * x.dtype.itemsize


def as_sent(x: Any) -> Any:
    """A C-contiguous array as communicators take it: NumPy's types that they do not know, long double and those of the other order of
    bytes, are bytes."""
    if type(x) is np.ndarray and (x.dtype.char in "gG" or not x.dtype.isnative):
        return x.reshape(-1).view(np.uint8)
    return x


def bounds_of(x: Any) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one after its last, in any memory."""
    if 0 in x.shape:
        return 0, 0
    namespace = namespace_of(x)
    low = high = namespace.address(x)
    for n, stride in zip(x.shape, namespace.strides(x), strict=True):
        reach = (n - 1) * stride * x.dtype.itemsize
        low, high = low + min(0, reach), high + max(0, reach)
    return low, high + x.dtype.itemsize


def may_overlap(x: Any, y: Any) -> bool:
    """Whether two arrays may have memory in common: whether the ranges of their addresses overlap."""
    (a, b), (c, d) = bounds_of(x), bounds_of(y)
    return max(a, c) < min(b, d)


def is_complex(x: Any) -> bool:
    """Whether this array, number or list of numbers is complex."""
    if hasattr(x, "dtype"):
        return x.dtype.is_complex if hasattr(x.dtype, "is_complex") else bool(x.dtype.kind == "c")
    return isinstance(x, complex) or (isinstance(x, list | tuple) and np.asarray(x).dtype.kind == "c")
