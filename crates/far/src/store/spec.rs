//! A store by its name, as people write it: `DIR`, `compressed`, or `DIR+compressed`.

use super::{BackingStore, Compressed, FileStore, StoreError, Tiered};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use terrace_types::Bytes;

/// Which store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSpec {
    /// Compressed memory, before the file if there is one.
    pub compressed: bool,
    /// The folder of a file without a name; none: compressed memory alone.
    pub folder: Option<PathBuf>,
}

impl StoreSpec {
    /// A folder, `compressed`, or a folder and `+compressed`. The empty text names no folder, which
    /// making it will say.
    #[must_use]
    pub fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        let folder = |name: &[u8]| Some(PathBuf::from(OsStr::from_bytes(name)));
        if bytes == b"compressed" {
            return Self { compressed: true, folder: None };
        }
        match bytes.strip_suffix(b"+compressed") {
            Some(name) => Self { compressed: true, folder: folder(name) },
            None => Self { compressed: false, folder: folder(bytes) },
        }
    }

    /// Makes it, for a map of `bytes` of which `dram` are in memory. Compressed memory alone holds
    /// at most three quarters of what the machine has available now, before a file as much as
    /// `dram`; a file takes its space as it is written.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: no folder, no permission.
    pub fn make(&self, bytes: Bytes, dram: Bytes) -> Result<Box<dyn BackingStore>, StoreError> {
        let Some(folder) = &self.folder else {
            // Beyond that the machine would swap, or kill.
            let space = terrace_sys::memory_available(&terrace_sys::Root::live()).unwrap_or(bytes);
            return Ok(Box::new(Compressed::new(Bytes(space.0 / 4 * 3))));
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
    fn the_three_store_forms_are_distinguished() {
        let spec = |text: &str| StoreSpec::parse(OsStr::new(text));
        assert_eq!(spec("compressed"), StoreSpec { compressed: true, folder: None });
        assert_eq!(spec("/a"), StoreSpec { compressed: false, folder: Some("/a".into()) });
        assert_eq!(
            spec("/a b+compressed"),
            StoreSpec { compressed: true, folder: Some("/a b".into()) }
        );
    }

    #[test]
    fn each_form_makes_its_store_and_a_missing_folder_is_an_error() {
        let (bytes, dram) = (Bytes::mib(8), Bytes::mib(4));
        let folder = std::env::temp_dir();
        let both = format!("{}+compressed", folder.display());
        for (text, name) in [
            ("compressed", "compressed"),
            (folder.to_str().unwrap(), "file"),
            (both.as_str(), "tiered"),
        ] {
            assert_eq!(StoreSpec::parse(OsStr::new(text)).make(bytes, dram).unwrap().name(), name);
        }
        assert!(StoreSpec::parse(OsStr::new("/no/such/folder")).make(bytes, dram).is_err());
        assert!(StoreSpec::parse(OsStr::new("")).make(bytes, dram).is_err());
    }
}
