//! Results kept as JSON, one file a run, found again by a sum over all that a run depends on.

use crate::calibrate::FigureReadBack;
use crate::compare::LabRun;
use crate::error::{io, Result};
use crate::wire;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Where and from what a result was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The host's processor, cores and kernel.
    pub host: String,
    /// Revision of the sources, where known.
    pub revision: String,
}

/// One policy's result on one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseRecord {
    /// Sum over everything that the result depends on.
    pub key: String,
    /// Name of the machine.
    pub machine: String,
    /// vCPUs.
    pub vcpus: u32,
    /// The workload as the guest was given it.
    pub input: String,
    /// Memory accesses of the measured phase, where known.
    pub accesses: Option<u64>,
    /// The proof that the machine is what its file says.
    pub calibration: Vec<FigureReadBack>,
    /// Where it was made.
    pub origin: Origin,
    /// The figures.
    pub run: LabRun,
}

/// A directory of records.
#[derive(Debug, Clone)]
pub struct RecordStore {
    dir: PathBuf,
}

impl RecordStore {
    /// The directory, made if it does not exist.
    pub fn open(dir: &Path) -> Result<Self> {
        for sub in ["runs", "profiles", "cases"] {
            let path = dir.join(sub);
            fs::create_dir_all(&path).map_err(io("creating", &path))?;
        }
        Ok(RecordStore { dir: dir.to_path_buf() })
    }

    /// Where profiles of bounds are kept.
    #[must_use]
    pub fn profiles(&self) -> PathBuf {
        self.dir.join("profiles")
    }

    /// The record of this key, under the name that is asked for now; one that cannot be read counts
    /// as none.
    #[must_use]
    pub fn find(&self, machine: &str, key: &str, policy: &str) -> Option<CaseRecord> {
        let bytes = fs::read(self.path(machine, key)).ok()?;
        let mut record: CaseRecord =
            serde_json::from_slice(&bytes).ok().filter(|r: &CaseRecord| r.key == key)?;
        record.run.policy = policy.to_string();
        Some(record)
    }

    /// Keep a record. The file appears whole or not at all.
    pub fn keep(&self, record: &CaseRecord) -> Result<()> {
        write_whole(&self.path(&record.machine, &record.key), &to_json(record)?)
    }

    /// Keep a value for people and for `terrace report` under a case's name.
    pub fn keep_case(&self, case: &str, value: &impl Serialize) -> Result<()> {
        write_whole(&self.dir.join("cases").join(format!("{case}.json")), &to_json(value)?)
    }

    fn path(&self, machine: &str, key: &str) -> PathBuf {
        self.dir.join("runs").join(format!("{machine}-{key}.json"))
    }
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec_pretty(value).map_err(|e| wire::WireError::BadJson(e.to_string()))?)
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, bytes).map_err(io("writing", &new))?;
    fs::rename(&new, path).map_err(io("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_results_are_found_by_name_and_broken_files_skipped() {
        let dir = std::env::temp_dir().join(format!("terrace-store-{}", std::process::id()));
        let store = RecordStore::open(&dir).unwrap();
        let record = CaseRecord {
            key: "0123".into(),
            machine: "lab-cxl".into(),
            vcpus: 2,
            input: "workload:skew".into(),
            accesses: Some(5),
            calibration: vec![],
            origin: Origin::default(),
            run: LabRun::new("kernel:damos", 1.5),
        };
        assert!(store.find("lab-cxl", "0123", "kernel:damos").is_none());
        store.keep(&record).unwrap();
        let found = store.find("lab-cxl", "0123", "kernel:damos-tuned").unwrap();
        assert_eq!(
            (found.run.policy.as_str(), found.run.seconds),
            ("kernel:damos-tuned", Some(1.5))
        );
        assert!(store.find("lab-cxl", "0124", "x").is_none());
        fs::copy(store.path("lab-cxl", "0123"), store.path("lab-cxl", "0124")).unwrap();
        assert!(store.find("lab-cxl", "0124", "x").is_none(), "a record of another key");
        fs::write(store.path("lab-cxl", "0123"), "{").unwrap();
        assert!(store.find("lab-cxl", "0123", "x").is_none());
        let _ = fs::remove_dir_all(dir);
    }
}
