"""What each kernel is taken for: by the user's table, the op that launched it, or its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_trace import COPY, GEMM, MEMSET_NAME, NCCL, OTHER, Hand, Span, Work
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.class_table import ClassTable, ClassTableError
from mfu_torch.insight.breakdown.classes import op_classes, work_classes
from mfu_torch.insight.breakdown.codes import CLASS_NAMES
from mfu_torch.insight.breakdown.formulas import FORMULAS
from mfu_torch.insight.breakdown.kernel_names import class_of_kernel, head_of
from mfu_torch.insight.breakdown.op_names import rule_of_op
from mfu_torch.insight.trace.reading import read_trace

NAMED = {
    "communication": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)",
        "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        "void mscclKernel_Sum_half_Simple(...)",
        "mscclpp::allreduce(...)",
        "nvshmemi_entrypoint_reduce_kernel",
        "void deep_ep::internode::dispatch<false, 8, true>(int4*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(void*)",
        "void internode::notify_dispatch<false, 4>(int const*)",
        "void internode_ll::combine<5, 7168>(void*)",
        "void dpsk::ep::internode::cached_notify<false>(int, int)",
        "multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "two_shot_all_reduce_kernel<float>",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
        "void hybrid_ep::dispatch_kernel<float>(int)",
        "void mori::moe::EpDispatchInterNodeKernel<__hip_bfloat16>(int)",
        "EpCombineIntraNodeKernel_bf16",
        "void moeA2ADispatchKernel<4, 8>(int)",
        "all2all_kernel",
        "barrier_on_stream_kernel_threadgroup",
        "void (anonymous namespace)::barrier_kernel(unsigned int**, unsigned long)",
        "void (anonymous namespace)::put_signal_kernel(unsigned int**)",
        "void (anonymous namespace)::wait_signal_kernel(unsigned int**)",
        "userbuffers_fp16_sum_inplace_gpu_rw_ag<8>",
        "kuserbuffers_pushsend",
        "void oneccl::reduce_kernel<float>(int)",
        "ccl_copy_kernel",
    ),
    "gemm": (
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
        "Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN_1LDSB0",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_schedP2x1x2x3_biasM",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3",
        "volta_sgemm_128x32_nt",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_nn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_64x3_tn_align8>()",
        "void cutlass::Kernel<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x256_nn_align1>(Params)",
        "cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x1_nn_align8",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<"
        "cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, float>>>()",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(float)",
        "void gemv2T_kernel_val<int, int, float, float>(float)",
        "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)",
        "triton_tem_fused_addmm_relu_2",
        "triton_mm",
        "fused_moe_kernel",
        "void marlin::Marlin<half, 256, 1, 8, 8, 4, 8>()",
        "_ZN5aiter50fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_ps_32x256E",
        "ck_moe_stage1_kernel<BF16, 128, 128>",
        "void mul_mat_vec_q<256, 32, block_q4_0, 2>(void const*)",
    ),
    "conv": (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16",
        "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc",
        "cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(float)",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true>(int)",
        "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
        "void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128>()",
        "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_3fooEEEEEvv",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_149kernel_grouped_conv_fwd_multiple_abd_xdl_c"
        "shuffleINS_34GridwiseGemmMultipleD_xdl_cshuffleItttftNS_5TupleIJEEEtEEEEvT_",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1",
        "miopenSp3AsmConv_v30_3_1_gfx94x_fp32_f2x3_stride1",
    ),
    "attention": (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>(Params)",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloop>>(Params)",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<int>)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1",
        "attn_fwd",
        "sage_fwd",
        "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_3fooEEEEEvT_",
        "_attn_bwd_dkdv",
        "triton_tem_fused_flex_attention_0",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<true, 1>(Params)",
        "void flashinfer::SinglePrefillWithKVCacheKernel<true>(Params)",
        "_fwd_kernel_stage2",
        "_fwd_grouped_kernel_stage1",
        "_ZN5aiter31mla_dec_stage1_bf16_a16w16_subQE",
        "mla_a8w8_qh16_m16x4_n16x1_coex0_mask1_ps",
        "_bwd_preprocess_do_o_dot",
    ),
    "copy": ("__amd_rocclr_copyBuffer.kd", "__amd_rocclr_fillBufferAligned.kd"),
    "other": (
        # Template arguments name types, not the work.
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
        "void at::native::vectorized_elementwise_kernel<4, cutlass::bfloat16_t, gemm_t>(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<cutlass::bfloat16_t>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false>(float*)",
        "triton_poi_fused_convolution_relu_0",
        "triton_red_fused__scaled_dot_product_attention_mm_3",
        "triton_per_fused_native_layer_norm_addmm_1",
        "triton_unk_fused_mm_2",
        "triton_fused_convolution_relu_0",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)",
        "SubTensorOpWithScalar1d",
        "void cuda::per_token_cast_to_fp8_with_channels<float>(float*)",
        "void cuda::per_channel_cast_and_transpose<float>(float*)",
        "_copy_tensor_kernel",
        "batched_transpose_32x16_half",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(__nv_bfloat16*)",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(__nv_bfloat16*)",
        "void get_mla_metadata_kernel<int>(int)",
        "void flash::prepare_varlen_num_blocks_kernel<1, true>(int)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(long)",
    ),
}

UNNAMED = (
    "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_3fooEEEEEEvT_",
    "void fbgemm_gpu::permute_2D_data_kernel<int>(int)",
    "void fbgemm_gpu::_get_FP8_qparam_cuda_kernel<float>(int)",
    "triton__0d1d2d3d",
    "void at::native::max_pool_forward_nchw<float, float>(int)",
    "void flashinfer::sampling::TopKKernel<float>(float*)",
    "convert_fp8_kernel",
    "void vllm::act_and_mul_kernel<c10::BFloat16>(c10::BFloat16*)",
)


@pytest.mark.parametrize(
    ("name", "wanted"), [(name, wanted) for wanted, names in NAMED.items() for name in names]
)
def test_a_kernel_is_what_its_name_says(name: str, wanted: str) -> None:
    code = class_of_kernel(name)
    assert code is not None and CLASS_NAMES[code] == wanted


@pytest.mark.parametrize("name", UNNAMED)
def test_a_name_that_says_nothing_is_not_guessed(name: str) -> None:
    assert class_of_kernel(name) is None


def test_the_head_of_a_name_is_without_types_and_arguments() -> None:
    assert head_of("void a::b<c::d>(e)") == "a::b"
    assert head_of("std::enable_if<(8 > 0), void>::type a::b<8>(int*)") == "a::b"
    assert head_of("_ZN2at6native13reduce_kernelILi512EEEvi") == "at::native::reduce_kernel"
    assert head_of("void at::native::(anonymous namespace)::f<int>(int)") == "at::native::f"
    assert head_of("nvjet_tst_64x64") == "nvjet_tst_64x64"


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("aten::mm", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten::bmm", "gemm"),
        ("aten::baddbmm", "gemm"),
        ("aten::_scaled_mm", "gemm"),
        ("aten::_grouped_mm", "gemm"),
        ("aten::_addmm_activation", "gemm"),
        ("aten::addmv_", "gemm"),
        ("aten::convolution", "conv"),
        ("aten::cudnn_convolution", "conv"),
        ("aten::convolution_backward", "conv"),
        ("aten::miopen_convolution", "conv"),
        ("aten::_conv_depthwise2d", "conv"),
        ("mkldnn::_convolution_pointwise", "conv"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::_efficient_attention_backward", "attention"),
        ("aten::_foreach_addcdiv_", "other"),
        ("aten::_fused_adamw_", "other"),
        ("aten::copy_", "other"),
        ("record_param_comms", "communication"),
        ("c10d::allreduce_", "communication"),
        ("nccl:all_reduce", "communication"),
        ("_c10d_functional::wait_tensor", "communication"),
        ("c10d_functional::all_gather_into_tensor", "communication"),
        ("symm_mem::one_shot_all_reduce", "communication"),
        ("aten::dot", "gemm"),
        ("aten::_cudnn_rnn", "gemm"),
        ("aten::_cudnn_rnn_backward", "gemm"),
        ("aten::miopen_rnn", "gemm"),
        ("xccl:all_reduce", "communication"),
        ("mpi:all_reduce", "communication"),
        ("onednn::qlinear_pointwise", "gemm"),
        ("aten::add_", None),
        ("aten::norm", None),
        ("aten::_convert_indices_from_coo_to_csr", None),
        ("aten::_fused_sdp_choice", None),
    ],
)
def test_an_op_of_torch_says_what_its_kernels_are(op: str, wanted: str | None) -> None:
    rule = rule_of_op(op)
    assert (None if rule.code is None else CLASS_NAMES[rule.code]) == wanted
    assert rule.exact is (wanted is not None)


def test_a_fused_op_of_symmetric_memory_is_no_communication_for_certain() -> None:
    rule = rule_of_op("symm_mem::fused_all_gather_matmul")
    assert not rule.exact and rule.code is not None and CLASS_NAMES[rule.code] == "gemm"


@pytest.mark.parametrize(
    "op", ["sgl_kernel::flash_mla_decode", "xformers_flash::flash_fwd", "aiter::mha_varlen_fwd"]
)
def test_a_custom_attention_is_known_by_the_name_of_its_op(op: str) -> None:
    assert of_work("my_unnamed_kernel", op) == "attention"


@pytest.mark.parametrize("op", ["aiter::ck_moe_stage2", "aiter::fmoe_g1u1", "deep_gemm::fp8_gemm"])
def test_a_custom_product_is_known_by_the_name_of_its_op(op: str) -> None:
    assert of_work("my_unnamed_kernel", op) == "gemm"


def of_work(name: str, *ops: str, table: dict[str, str] | None = None) -> str:
    """Class of a kernel that was launched under nested ops, the innermost last."""
    nested = [Span(i, 100 - i, op) for i, op in enumerate(ops)]
    hand = Hand(work=[Work(name, 200, 300, 50, op=ops[-1] if ops else None)], ops=nested)
    return CLASS_NAMES[work_classes(hand.trace(), ClassTable(table))[0]]


def test_the_op_of_a_kernel_says_more_than_its_name() -> None:
    assert of_work("void epilogue::impl::globalKernel<8>(int)") == "other"
    assert of_work("void epilogue::impl::globalKernel<8>(int)", "aten::addmm") == "gemm"
    assert of_work("void fft2d_r2c_32x32<float>(float)", "aten::cudnn_convolution") == "conv"
    # The gemm in a convolution is a convolution.
    assert of_work("volta_sgemm_128x32_nt", "aten::convolution_backward") == "conv"
    assert of_work("my_unnamed_kernel", "record_param_comms") == "communication"
    assert of_work("my_unnamed_kernel", "c10d::_allgather_base_") == "communication"


def test_layout_changes_and_biases_in_a_matrix_op_are_other_compute() -> None:
    assert of_work("cudnn::ops::nchwToNhwcKernel<float>", "aten::cudnn_convolution") == "other"
    assert of_work("vectorized_elementwise_kernel", "aten::addmm") == "other"
    assert of_work("vectorized_elementwise_kernel", "aten::convolution", "aten::add_") == "other"


@pytest.mark.parametrize("op", sorted(set(FORMULAS)))
def test_what_has_a_formula_is_matrix_work(op: str) -> None:
    assert of_work("my_unnamed_kernel", op) in ("gemm", "conv", "attention")


def test_a_persistent_recurrent_kernel_is_matrix_work_and_its_cells_are_not() -> None:
    assert of_work("RNN_blockPersist_fp_LSTM<float, float>", "aten::_cudnn_rnn") == "gemm"
    assert of_work("void LSTM_elementWise_fp<float, float>(int)", "aten::_cudnn_rnn") == "other"
    assert of_work("void elemWiseRNNcell<float, float>(int)", "aten::_cudnn_rnn") == "other"


def test_a_dtype_cast_before_a_collective_is_other_compute() -> None:
    assert of_work("my_cast_kernel", "c10d::allgather_", "aten::copy_") == "other"


def test_a_wrapper_asks_the_op_around_it() -> None:
    assert of_work("_fwd_kernel", "aten::mm", "wrapper") == "gemm"
    assert of_work("_fwd_kernel", "FlashAttnFunc", "wrapper", "wrapper2") == "attention"
    assert of_work("_fwd_kernel", "wrapper", "wrapper2") == "other"


def test_a_custom_op_only_speaks_where_the_kernel_is_silent() -> None:
    assert of_work("_fwd_kernel", "vllm::unified_attention_with_output") == "attention"
    assert of_work("volta_sgemm_128x32_nt", "vllm::unified_attention_with_output") == "gemm"
    cache = "vllm::reshape_and_cache_flash_kernel"
    assert of_work(cache, "vllm::unified_attention_with_output") == "other"


def test_copies_are_copies_whatever_launched_them() -> None:
    assert of_work(COPY, "aten::mm") == "copy"
    assert of_work(MEMSET_NAME, "aten::mm") == "copy"
    assert of_work(COPY, "record_param_comms") == "copy"


def test_the_users_table_comes_first() -> None:
    assert of_work(GEMM, "aten::mm", table={"^sgemm": "communication"}) == "communication"
    assert of_work(NCCL, table={"ncclDev": "other", "nccl": "gemm"}) == "other"
    assert of_work(OTHER, table={"never": "gemm"}) == "other"
    assert of_work(COPY, table={"Memcpy HtoD": "communication"}) == "communication"


def test_the_users_table_is_a_toml_file_too(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('[classes]\n"my_fused_mlp.*" = "gemm"\n"^ring" = "communication"\n')
    table = ClassTable(path)
    assert table.of(["x::my_fused_mlp_v2", "ring_ag", "a_ring"]) == [0, 4, None]
    assert len(ClassTable(str(path))) == 2


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[classes\n", "is not TOML"),
        ("", "holds nothing; expected one table [classes]"),
        ('"k" = "gemm"\n', "holds k; expected one table [classes]"),
        ('[classes]\n"k" = "matmul"\n', "'k' is given the class 'matmul'; expected one of gemm, "),
        ('[classes]\n"k" = 3\n', "'k' is given the class 3; expected one of gemm, conv"),
        ('[classes]\n"k(" = "gemm"\n', "'k(' is no regular expression: missing )"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_line(
    tmp_path: Path, text: str, wrong: str
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(ClassTableError) as error:
        ClassTable(path)
    assert wrong in str(error.value) and "my.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mapping_is_checked_like_a_file() -> None:
    with pytest.raises(ClassTableError, match="classes: 'k' is given the class 'mm'; expected"):
        ClassTable({"k": "mm"})


def test_on_a_cpu_all_that_runs_in_a_matmul_is_matmul() -> None:
    nested = [
        Span(0, 90, "aten::linear"),
        Span(10, 80, "aten::addmm"),
        Span(20, 30, "aten::expand"),
        Span(85, 88, "aten::view"),
        Span(100, 200, "Custom"),
        Span(110, 120, "aten::mul"),
    ]
    found = op_classes(Hand(ops=nested).trace())
    assert [CLASS_NAMES[code] for code in found] == [
        *("gemm", "gemm", "gemm", "gemm", "other", "other"),
    ]


def test_on_a_cpu_the_name_of_a_custom_function_says_nothing_of_the_ops_of_torch_in_it() -> None:
    nested = [
        Span(0, 90, "MyCausalAttentionFn"),
        Span(10, 20, "aten::mul"),
        Span(30, 40, "aten::mm"),
        Span(50, 60, "helper"),
        Span(100, 200, "autograd::engine::evaluate_function: ConvolutionBackward0"),
        Span(110, 190, "ConvolutionBackward0"),
        Span(120, 180, "aten::convolution_backward"),
    ]
    found = op_classes(Hand(ops=nested).trace())
    assert [CLASS_NAMES[code] for code in found] == [
        *("attention", "other", "gemm", "attention", "other", "other", "conv"),
    ]


def test_an_annotation_of_the_user_says_nothing_of_the_kernels_in_it(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.annotation("my_gemm_helper", 0, 1000)
    builder.annotation("attention_conv_nccl", 10, 900)
    builder.op("my::scale", 20, 500)
    builder.kernel("scale_kernel", 300, 100, launch_ns=50)
    builder.kernel("no_op_kernel", 500, 100, launch_ns=600)
    trace = read_trace(builder.write(tmp_path / "trace.json"))
    assert [CLASS_NAMES[code] for code in work_classes(trace)] == ["other", "other"]
    table = ClassTable({"^scale": "gemm"})
    assert [CLASS_NAMES[code] for code in work_classes(trace, table)] == ["gemm", "other"]
