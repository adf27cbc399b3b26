"""What a candidate's Python may name, import, call and read: the word lists behind the rules in hostcode.py."""

import builtins
import sys

IMPORTS = {
    "__future__", "torch", "torch.nn", "torch.nn.functional", "torch.utils", "torch.utils.cpp_extension", "math", "operator", "typing", "cuda_extension",
    "functools", "itertools", "collections", "dataclasses", "triton", "triton.language", "triton.language.extra", "triton.language.extra.cuda", "cupy",
}  # fmt: skip
NAMES = {
    "eval", "exec", "compile", "globals", "locals", "vars", "open", "input", "breakpoint", "setattr", "delattr", "memoryview", "dir", "classmethod_descriptor",
}  # fmt: skip
ALLOCATE = {
    "empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "Size", "device", "no_grad", "inference_mode",
    "is_tensor", "is_floating_point", "get_num_threads", "finfo", "iinfo", "is_grad_enabled", "get_default_dtype",
}  # fmt: skip
METHODS = {
    "size", "stride", "numel", "dim", "ndimension", "data_ptr", "element_size", "storage_offset", "is_contiguous", "nelement", "contiguous", "clone", "copy_",
    "view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "permute", "transpose", "t", "narrow", "select",
    "detach", "requires_grad_", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "zero_", "fill_", "to", "float", "double", "half",
    "bfloat16", "int", "long", "type", "cpu", "cuda", "is_floating_point", "dim_order", "movedim", "as_strided", "unfold", "item", "tolist", "get_device",
    "unbind", "chunk", "split", "swapaxes", "broadcast_to",
    "get", "append", "items", "keys", "values", "index", "extend", "insert", "clear", "format", "join", "setdefault", "update", "pop", "popitem", "startswith",
    "endswith", "replace", "lower", "named_parameters", "parameters", "named_buffers", "buffers", "register_buffer",
    "wait_stream", "wait_event", "record", "record_event", "record_stream", "synchronize", "query", "elapsed_time", "replay", "capture_begin", "capture_end",
    "pool", "reset",
}  # fmt: skip
"""Methods of tensors that allocate, view, convert or copy, of plain containers, of CUDA streams, events and graphs."""
MAKES_NUMBER = {
    "size", "stride", "numel", "dim", "ndimension", "data_ptr", "element_size", "item", "tolist", "is_contiguous", "nelement", "storage_offset", "dim_order",
    "is_floating_point", "get_device", "elapsed_time", "query", "startswith", "endswith",
}  # fmt: skip
FACTS = {"shape", "ndim", "dtype", "device", "layout", "is_cuda", "requires_grad", "itemsize", "nbytes", "training", "cuda_stream"}
"""Attributes of a tensor or module that hold no tensor."""
SETTINGS = {
    "eps", "stride", "padding", "dilation", "groups", "kernel_size", "in_channels", "out_channels", "in_features", "out_features", "num_features",
    "num_groups", "num_channels", "normalized_shape", "negative_slope", "hidden_size", "input_size", "num_layers", "embedding_dim", "num_embeddings",
    "padding_idx", "momentum", "output_padding", "embed_dim", "num_heads", "head_dim", "padding_mode", "affine", "elementwise_affine",
}  # fmt: skip
"""Attributes of torch's layers that hold numbers."""
PURE = {
    "len", "int", "float", "bool", "str", "range", "isinstance", "hasattr", "print", "id", "repr", "callable", "issubclass", "complex", "ord",
    "chr",
}  # fmt: skip
"""Builtins whose value is no tensor, whatever they are given."""
CARRIERS = {"tuple", "list", "dict", "set", "frozenset", "enumerate", "zip", "reversed", "next", "iter", "type", "slice"}
ARITHMETIC = {"min", "max", "sum", "abs", "pow", "round", "divmod", "sorted", "any", "all"}
"""Builtins that become torch operators when handed a tensor."""
ERRORS = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}
OPERATORS = {
    "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "lt", "le", "eq", "ne", "ge", "gt", "lshift", "rshift", "and_", "or_", "xor", "index",
}  # fmt: skip
ITERTOOLS = {
    "chain", "product", "count", "repeat", "islice", "zip_longest", "cycle", "accumulate", "starmap", "takewhile", "dropwhile", "filterfalse",
}  # fmt: skip
CALLERS = {
    "map": 0, "filter": 0, "functools.reduce": 0, "functools.partial": 0, "itertools.starmap": 0, "itertools.takewhile": 0, "itertools.dropwhile": 0,
    "itertools.filterfalse": 0, "itertools.accumulate": 1, "collections.defaultdict": 0,
}  # fmt: skip
"""What calls its arguments -> place of the function."""
KEYWORD_CALLERS = {
    "sorted": "key", "min": "key", "max": "key", "itertools.accumulate": "func", "dataclasses.field": "default_factory", "collections.defaultdict": "default_factory",
}  # fmt: skip
LOADERS = {
    "torch.utils.cpp_extension.load": "module", "torch.utils.cpp_extension.load_inline": "module", "cupy.RawModule": "raw", "cupy.RawKernel": "kernel",
    "cupy.ElementwiseKernel": "kernel", "cupy.ReductionKernel": "kernel",
}  # fmt: skip
"""What builds kernels of the candidate's own, and what it returns."""
CUPY_ARRAYS = {"asarray", "from_dlpack", "empty", "empty_like"}
CUPY = {
    "RawKernel", "RawModule", "ElementwiseKernel", "ReductionKernel", "cuda.ExternalStream", "cuda.Stream", "cuda.Device", "cuda.get_current_stream",
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool_", "intp",
} | CUPY_ARRAYS  # fmt: skip
"""Of CuPy: own kernels, streams, views and scalars of a launch; its other array functions are a library's work."""
CUDA = {
    "current_stream", "default_stream", "Stream", "ExternalStream", "stream", "Event", "device", "current_device", "device_count", "set_device",
    "get_device_properties", "get_device_capability", "get_device_name", "synchronize", "is_available", "is_current_stream_capturing", "CUDAGraph", "graph",
    "graph_pool_handle",
}  # fmt: skip
"""Of torch.cuda: streams, events, graphs and facts."""
CUDA_FACTS = {"current_device", "device_count", "get_device_properties", "get_device_capability", "get_device_name", "is_available"}
TRITON = {"cdiv", "next_power_of_2", "Config", "jit", "autotune", "heuristics"}
PLAIN = {
    "Tensor", "Size", "dtype", "device", "strided", "contiguous_format", "channels_last", "channels_last_3d", "preserve_format", "inf", "nan", "pi", "e", "float",
    "float16", "float32", "float64", "half", "double", "bfloat16", "int", "long", "short", "int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
    "bool", "nn", "cuda", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "utils", "version", "memory_format",
}  # fmt: skip
"""Of torch: what may be named without being called."""
DECORATORS = {
    "staticmethod", "classmethod", "property", "torch.no_grad", "torch.inference_mode", "functools.lru_cache", "functools.cache", "functools.cached_property",
    "triton.jit", "triton.autotune", "triton.heuristics", "dataclasses.dataclass",
}  # fmt: skip
BASES = {"torch.nn.Module", "object", "typing.NamedTuple"} | ERRORS
BUILDING = {"torch", "torch.nn", "torch.nn.init", "torch.nn.functional", "torch.Tensor", "torch.cuda", "torch.utils.cpp_extension"}
"""Where functions may come from that are called while the module is built."""
WEIGHT_NORMS = {"torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm"}
"""They compute in a hook of a module that is never called."""
REACHES_OUT = {"load", "save", "from_file", "compile", "vmap", "set_default_device", "cond", "while_loop"}
MODULE_METHODS = {
    "forward", "train", "eval", "apply", "to", "half", "float", "double", "bfloat16", "cuda", "cpu", "type", "state_dict", "load_state_dict", "named_parameters",
    "parameters", "named_buffers", "buffers", "named_modules", "modules", "children", "named_children", "zero_grad", "requires_grad_", "extra_repr",
    "get_parameter", "get_buffer", "get_submodule", "get_extra_state", "set_extra_state", "share_memory", "register_buffer", "register_parameter",
}  # fmt: skip
"""Methods that others than the candidate call: their arguments may be anything."""
GRAPHS = {"torch.cuda.graph", "torch.cuda.graphs.graph", "torch.cuda.make_graphed_callables"}
"""What captures: a graph may hold the work of forward only."""
MUTATORS = {"append", "extend", "insert", "setdefault", "update"}
REGISTERS = {"register_buffer", "register_parameter"}
RESERVED = {
    "getattr", "hasattr", "super", "staticmethod", "classmethod", "property", "cached_property", "isinstance", "len", "enumerate", "zip", "tuple", "list",
    "bool",
}  # fmt: skip
"""Names that the rules know by their spelling: nothing else may be bound to them."""
OPEN_NAMES = {"ModuleDict", "ParameterDict", "BufferDict"}
"""Of torch.nn: their keys become attributes and methods by names that cannot be followed."""
HOLD_TENSORS = {"Parameter", "Buffer", "UninitializedParameter", "ParameterList", "ModuleList", "Sequential", "Module"}
"""Of torch.nn: what may be made of tensors and modules. The settings of all other layers are numbers."""
LIBRARIES = {"math", "operator", "typing", "functools", "itertools", "collections", "dataclasses", "triton", "cupy"}
PURE_CALLS = {"triton.cdiv", "triton.next_power_of_2", "math.ceil", "math.floor", "math.log2", "math.prod", "math.sqrt"}
ROOTS = {name.partition(".")[0] for name in IMPORTS}
INSIDE = {
    "ops", "jit", "compile", "autograd", "classes", "library", "fx", "overrides", "multiprocessing", "distributed", "export", "func", "package", "hub",
}  # fmt: skip
STDLIB = sys.stdlib_module_names - {"select", "random", "signal", "operator", "typing"}
MODULE_CHANGES = {"add_module", "register_module", "compile", "register_parametrization", "parametrize", "parametrizations", "__call__"}
SETTABLE = {"weight", "bias", "data", "requires_grad"}
CAPTURES = {"capture_begin", "begin_capture", "make_graphed_callables"}
PLUMBING = {
    "functools.reduce", "functools.partial", "functools.lru_cache", "functools.cache", "collections.namedtuple", "collections.OrderedDict",
    "collections.defaultdict", "collections.deque", "dataclasses.dataclass", "dataclasses.field", "dataclasses.replace",
    "itertools.chain.from_iterable", *(f"itertools.{name}" for name in ITERTOOLS),
}  # fmt: skip
TRUSTED = METHODS | FACTS | SETTINGS | MAKES_NUMBER
PRIVATE = {
    "_apply", "_backward_hooks", "_backward_pre_hooks", "_buffers", "_call_impl", "_compiled_call_impl", "_forward_hooks",
    "_forward_hooks_always_called", "_forward_hooks_with_kwargs", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_get_backward_hooks", "_get_backward_pre_hooks", "_get_name", "_is_full_backward_hook", "_load_from_state_dict",
    "_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_maybe_warn_non_full_backward_hook", "_modules", "_named_members",
    "_non_persistent_buffers_set", "_parameters", "_register_load_state_dict_pre_hook", "_register_state_dict_hook",
    "_replicate_for_data_parallel", "_save_to_state_dict", "_slow_forward", "_state_dict_hooks", "_state_dict_pre_hooks", "_version",
    "_wrapped_call_impl",
}  # fmt: skip
"""What torch.nn.Module keeps for itself."""
