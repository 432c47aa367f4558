"""A model of DeepSeek-V2's form with two layers and random weights: latent attention, whose KV every rank holds.

Its answers mean nothing; what it computes is the same for the same prompt, and that is what a tier must give back."""

import shutil
from pathlib import Path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def make_tiny_mla(folder: Path, tokenizer_of: Path) -> Path:
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV2Config(
        vocab_size=49_152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
        first_k_dense_replace=2,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    DeepseekV2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (tokenizer_of / name).exists():
            shutil.copy(tokenizer_of / name, folder / name)
    return folder
