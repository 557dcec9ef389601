"""The fixtures mean what the tests that use them assume, judged by transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from haversack_testing import FAMILIES, chain, random_model
from haversack_testing.chain import LISTED_LOGIT, LISTED_LOSS, UNLISTED_LOSS, WRONG_LOSS


def test_chain_has_the_logits_of_its_closed_form(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(chain(tmp_path, {97: 98, 98: 256}))
    with torch.no_grad():
        logits = model(torch.tensor([[97, 98, 120]])).logits[0]
    expected = torch.zeros(3, 320)
    expected[0, 98] = expected[1, 256] = LISTED_LOGIT
    torch.testing.assert_close(logits, expected)


def test_chain_has_the_documented_losses() -> None:
    losses = [round(x, 4) for x in (LISTED_LOGIT, LISTED_LOSS, WRONG_LOSS, UNLISTED_LOSS)]
    assert losses == [11.3119, 0.0039, 11.3158, 5.7683]


def test_b0_ids_are_bytes(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(chain(tmp_path, {}))
    assert tokenizer.encode("aé€ \n<|im_end|>") == [*"aé€ \n".encode(), 258]
    assert tokenizer.eos_token_id == 256


@pytest.mark.parametrize("family", FAMILIES)
def test_random_models_load_with_no_default_weight_left(tmp_path: Path, family: str) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(
        random_model(family, tmp_path), output_loading_info=True
    )
    assert not info["missing_keys"]
    assert model.get_output_embeddings().weight.shape == (320, 64)
    assert all(p.unique().numel() > 2 for p in model.parameters())
