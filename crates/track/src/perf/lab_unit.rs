//! The lab's sampling unit in place of the processor's: opened and told what to sample otherwise,
//! read as perf's rings are.

use std::sync::Arc;
use terrace_sampling::{
    ring_offset, UnitAnswer, UnitSettings, UNIT_ANSWER_WORD, UNIT_BUFFER_BYTES, UNIT_MARK,
    UNIT_PAGE_BYTES, UNIT_REGION_BYTES, UNIT_RING_BYTES,
};
use terrace_sys::{execute_mark, CurrentTaskOffsets, Root, SampleRing, SysError, UnitMemory};

/// The unit, told to sample nothing when it is dropped.
#[derive(Debug)]
pub(super) struct LabUnit {
    memory: Arc<UnitMemory>,
    settings: UnitSettings,
    /// What it had done for others before: it counts since the machine was awakened.
    before: UnitAnswer,
}

impl LabUnit {
    /// The unit of this machine; `None` outside the lab.
    ///
    /// # Errors
    /// Why it cannot be used, one sentence.
    pub fn open(root: &Root, buffer_bytes: u64) -> Result<Option<Self>, String> {
        let memory = match UnitMemory::open(root, UNIT_REGION_BYTES as usize) {
            Ok(memory) => Arc::new(memory),
            Err(SysError::Absent { .. }) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if !UNIT_BUFFER_BYTES.contains(&buffer_bytes) {
            return Err(format!("a buffer of {buffer_bytes} bytes; 8 to 64 KiB work"));
        }
        let offsets = CurrentTaskOffsets::find(root).map_err(|e| e.to_string())?;
        let settings = UnitSettings {
            periods: [0; 3],
            buffer_bytes,
            current_task: offsets.current,
            task_pid: offsets.pid,
            task_tgid: offsets.tgid,
        };
        let mut unit = Self { memory, settings, before: UnitAnswer::default() };
        match unit.sample([0; 3]) {
            Some(answer) if answer.accepted => {
                unit.before = answer;
                Ok(Some(unit))
            }
            Some(_) => Err("the lab's sampling unit refused its settings".to_owned()),
            None => Err("this lab's timing plugin has no sampling unit; build it anew".to_owned()),
        }
    }

    /// From now on samples with these periods, in the order of the unit's events; zero: not. What
    /// buffers held is in the rings then. Counts are those since it was opened. `None`: nobody
    /// answers.
    pub fn sample(&self, periods: [u64; 3]) -> Option<UnitAnswer> {
        let words = UnitSettings { periods, ..self.settings }.encode();
        words.iter().enumerate().for_each(|(i, word)| self.memory.set_word(i, *word));
        self.memory.set_word(UNIT_ANSWER_WORD, 0);
        execute_mark::<UNIT_MARK>();
        let words = std::array::from_fn(|i| self.memory.word(UNIT_ANSWER_WORD + i));
        let answer = UnitAnswer::decode(words)?;
        Some(UnitAnswer {
            accepted: answer.accepted,
            records: answer.records.saturating_sub(self.before.records),
            interrupts: answer.interrupts.saturating_sub(self.before.interrupts),
            lost: answer.lost.saturating_sub(self.before.lost),
            cost_ps: answer.cost_ps.saturating_sub(self.before.cost_ps),
        })
    }

    /// The ring of a CPU.
    pub fn ring(&self, cpu: u32) -> Option<SampleRing> {
        let offset = ring_offset(cpu as usize);
        SampleRing::of_unit(self.memory.clone(), offset, UNIT_PAGE_BYTES, UNIT_RING_BYTES)
    }
}

impl Drop for LabUnit {
    fn drop(&mut self) {
        self.sample([0; 3]);
    }
}
