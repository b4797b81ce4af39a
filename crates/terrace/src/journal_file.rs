//! The journal as a file, and the journal of a run that is not managed.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use terrace_engine::journal::{
    encode, encode_header, JournalEntry, JournalHeader, JournalSummary, NoteEntry, TierHeader,
    VERSION,
};
use terrace_engine::{Journal, JournalError};
use terrace_machine::{rank, Machine, RankAttribute};

/// Appends lines to a file, each handed to the kernel whole.
#[derive(Debug)]
pub(crate) struct JournalFile(File);

impl JournalFile {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        File::create(path).map(Self)
    }
}

impl Journal for JournalFile {
    fn append(&mut self, line: &str) -> Result<(), JournalError> {
        let mut whole = String::with_capacity(line.len() + 1);
        whole.push_str(line);
        whole.push('\n');
        self.0.write_all(whole.as_bytes()).map_err(|e| JournalError::Write(e.to_string()))
    }
}

/// The journal of a run that is not managed: which machine and command it was, why nothing was
/// placed, and how long the command ran.
#[derive(Debug)]
pub(crate) struct UnmanagedJournal {
    file: JournalFile,
    begun: Instant,
}

impl UnmanagedJournal {
    /// Writes all that is known before the command starts.
    pub(crate) fn create(
        path: &Path,
        policy: &str,
        command: String,
        machine: Option<&Machine>,
        why: &str,
    ) -> Result<Self, String> {
        let file = JournalFile::create(path).map_err(|e| e.to_string())?;
        let mut journal = Self { file, begun: Instant::now() };
        let header = JournalHeader {
            terrace_journal: VERSION,
            command,
            policy: policy.to_owned(),
            params: Default::default(),
            machine: machine.map(|m| m.name.clone()).unwrap_or_default(),
            page_size_bytes: terrace_sys::page_size().get(),
            tiers: machine.map(tiers).unwrap_or_default(),
            trackers: Vec::new(),
        };
        let text = format!("ran unmanaged: {why}");
        journal.append(&encode_header(&header))?;
        journal.append(&encode(&JournalEntry::Note(NoteEntry { at_ns: 0, text })))?;
        Ok(journal)
    }

    /// Writes the account, in which nothing moved.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        let at_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.append(&encode(&JournalEntry::End(JournalSummary {
            at_ns,
            ..JournalSummary::default()
        })))
    }

    fn append(&mut self, line: &str) -> Result<(), String> {
        self.file.append(line).map_err(|e| e.to_string())
    }
}

fn tiers(machine: &Machine) -> Vec<TierHeader> {
    let ranked = rank(machine, RankAttribute::Bandwidth, None).map(|r| r.tiers).unwrap_or_default();
    let header = |(rank, tier): (usize, &terrace_machine::Tier)| TierHeader {
        rank,
        kind: tier.kind.map_or("memory", |kind| kind.name()).to_owned(),
        nodes: tier.nodes.clone(),
        capacity_bytes: tier.capacity.get(),
        read_latency_ns: tier.read_latency.map(|f| f.value.get()),
        read_bandwidth_bytes_per_s: tier.read_bandwidth.map(|f| f.value.get()),
        write_bandwidth_bytes_per_s: tier.write_bandwidth.map(|f| f.value.get()),
        evidence: Default::default(),
    };
    ranked.iter().enumerate().map(header).collect()
}
