# SPDX-License-Identifier: Apache-2.0
"""The engine's worker with ANVIL_RECORD: what the workers of both platforms derive from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.worker.gpu_worker import Worker

from vllm_anvil.plugin import record_settings

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput

    from vllm_anvil.plugin.recorder import Recorder


class RecordingWorker(Worker):
    """Writes the steps that it runs to files where ANVIL_RECORD asks for it."""

    _recorder: Recorder | None = None

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights=load_dummy_weights)
        self._recorder = record_settings.recorder_of_worker(
            self.vllm_config, self.rank, self.get_model()
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """A step's forward pass, which ANVIL_RECORD records."""
        tokens = scheduler_output.total_num_scheduled_tokens
        if self._recorder is None or tokens == 0:
            return super().execute_model(scheduler_output)
        requests = len(scheduler_output.num_scheduled_tokens)
        with self._recorder.step(tokens=tokens, requests=requests):
            return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> Any:
        """The end of a step."""
        if self._recorder is None:
            return super().sample_tokens(grammar_output)
        with self._recorder.part_of_step():
            output = super().sample_tokens(grammar_output)
        self._recorder.end_step()
        return output

    def shutdown(self) -> None:
        """Also writes the step under way."""
        if self._recorder is not None:
            self._recorder.end_step()
            self._recorder = None
        super().shutdown()
