//! The store that was asked for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use terrace_far::store::{Compressed, FileStore, Store, Tiered};
use terrace_far::FarError;
use terrace_types::Bytes;

/// What `TERRACE_FAR_STORE` says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    compressed: bool,
    folder: Option<PathBuf>,
}

impl Spec {
    pub(crate) fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        let folder = |name: &[u8]| Some(crate::absolute(OsStr::from_bytes(name).as_ref()));
        if bytes == b"compressed" {
            return Self { compressed: true, folder: None };
        }
        match bytes.strip_suffix(b"+compressed") {
            Some(name) => Self { compressed: true, folder: folder(name) },
            None => Self { compressed: false, folder: folder(bytes) },
        }
    }

    /// Makes it, for a map of `bytes` of which `dram` are in memory.
    pub(crate) fn make(&self, bytes: Bytes, dram: Bytes) -> Result<Box<dyn Store>, FarError> {
        let Some(folder) = &self.folder else {
            // Beyond that the machine would swap, or kill.
            let room = terrace_sys::memory_available(&terrace_sys::Root::live()).unwrap_or(bytes);
            return Ok(Box::new(Compressed::new(Bytes(room.0 / 4 * 3))));
        };
        let file = FileStore::sparse(&[folder], bytes)?;
        if self.compressed {
            return Ok(Box::new(Tiered::new(Compressed::new(dram), Box::new(file))));
        }
        Ok(Box::new(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_are_told_apart() {
        let spec = |text: &str| Spec::parse(OsStr::new(text));
        assert_eq!(spec("compressed"), Spec { compressed: true, folder: None });
        assert_eq!(spec("/a"), Spec { compressed: false, folder: Some("/a".into()) });
        assert_eq!(spec("/a b+compressed"), Spec { compressed: true, folder: Some("/a b".into()) });
        assert!(spec("a").folder.is_some_and(|f| f.is_absolute()));
    }
}
