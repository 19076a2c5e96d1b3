"""The classes that every run of the tests goes through, by architecture."""

from __future__ import annotations

REPRESENTATIVES: dict[str, tuple[str, ...]] = {
    "causal language models": (
        "LlamaForCausalLM", "GPT2LMHeadModel", "GemmaForCausalLM", "Qwen3ForCausalLM",
        "PhiForCausalLM", "BloomForCausalLM", "FalconForCausalLM", "OPTForCausalLM",
        "GPTNeoXForCausalLM", "Cohere2ForCausalLM", "XGLMForCausalLM",
    ),
    "mixtures of experts": (
        "MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "OlmoeForCausalLM",
        "GptOssForCausalLM", "GraniteMoeForCausalLM",
    ),
    "state spaces, recurrences and hybrids": (
        "MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM", "JambaForCausalLM",
        "RecurrentGemmaForCausalLM", "BambaForCausalLM",
    ),
    "encoders": (
        "BertForMaskedLM", "AlbertForMaskedLM", "DebertaV2ForMaskedLM", "ModernBertForMaskedLM",
        "FNetForMaskedLM", "LongformerForMaskedLM", "XLNetLMHeadModel", "EsmForMaskedLM",
        "BertForQuestionAnswering", "RobertaForTokenClassification", "BertForMultipleChoice",
        "DistilBertForSequenceClassification",
    ),
    "sequence to sequence": (
        "T5ForConditionalGeneration", "BartForConditionalGeneration",
        "PegasusForConditionalGeneration", "ProphetNetForConditionalGeneration",
    ),
    "vision": (
        "ViTForImageClassification", "SwinForImageClassification", "ConvNextForImageClassification",
        "ResNetForImageClassification", "MobileNetV1ForImageClassification",
        "PvtV2ForImageClassification", "SegformerForImageClassification",
        "Dinov2ForImageClassification", "YolosForObjectDetection", "BeitForImageClassification",
        "VideoMAEForVideoClassification", "SamModel",
    ),
    "audio": (
        "Wav2Vec2ForCTC", "WhisperForConditionalGeneration", "ASTForAudioClassification",
        "Speech2TextForConditionalGeneration", "WavLMForXVector",
    ),
    "several modalities": (
        "CLIPModel", "SiglipModel", "BlipForConditionalGeneration", "LlavaForConditionalGeneration",
        "Qwen2VLForConditionalGeneration", "PaliGemmaForConditionalGeneration",
        "Idefics3ForConditionalGeneration", "LayoutLMForMaskedLM", "FlavaModel", "Blip2Model",
    ),
    "time series and decisions": (
        "PatchTSTModel", "InformerModel", "DecisionTransformerModel",
    ),
}  # fmt: skip
