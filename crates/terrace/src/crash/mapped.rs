//! A file of persistent memory that a program maps by itself, without `terrace_crash.h`. Each run
//! has a copy of its own, in its own folder; the file itself is never written.

use super::workspace::Workspace;
use super::CrashError;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use terrace_crash::persist::PersistentMapping;
use terrace_crash::{DataObject, ObjectKind, RegionFile};

/// The file as it is before the program runs.
#[derive(Debug)]
pub struct PersistentFile {
    name: OsString,
    before: Option<Vec<u8>>,
}

impl PersistentFile {
    /// Reads it; it need not be there, as where the program makes it.
    pub fn read(path: &Path) -> Result<Self, CrashError> {
        let mut parts = path.components().filter(|c| *c != Component::CurDir);
        let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else {
            return Err(CrashError::FileElsewhere { path: path.to_owned() });
        };
        let before = match std::fs::read(name) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(CrashError::Work { path: path.to_owned(), source }),
        };
        Ok(Self { name: name.to_owned(), before })
    }

    /// Its name in each folder.
    pub fn name(&self) -> &OsString {
        &self.name
    }

    /// Puts a copy into a folder.
    pub fn put(&self, folder: &Path) -> Result<(), CrashError> {
        let Some(bytes) = &self.before else { return Ok(()) };
        let path = folder.join(&self.name);
        std::fs::write(&path, bytes).map_err(|source| CrashError::Work { path, source })
    }

    /// What a run in `folder` did with it: one object, from the mapping's first byte to the file's
    /// last, with its content before.
    pub fn as_region(
        &self,
        folder: &Path,
        mapped: &PersistentMapping,
    ) -> Result<RegionFile, CrashError> {
        let path = folder.join(&self.name);
        let bytes = match std::fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(source) => return Err(CrashError::Work { path, source }),
        };
        if mapped.bytes < bytes {
            return Err(CrashError::PartMapped { path: PathBuf::from(&self.name) });
        }
        let mut content = self.before.clone().unwrap_or_default();
        content.resize(bytes as usize, 0);
        let object = DataObject {
            name: self.name.to_string_lossy().into_owned(),
            element_type: "byte".to_owned(),
            kind: ObjectKind::Critical,
            element_bytes: 1,
            address: mapped.address,
            bytes,
        };
        Ok(RegionFile { objects: vec![object], content })
    }
}

/// Whom a run's folder shows what: the current folder's entries by links, and a copy of the file.
pub fn create_run_folder(
    workspace: &Workspace,
    name: &str,
    own: Option<&PersistentFile>,
) -> Result<PathBuf, CrashError> {
    let folder = workspace.create_folder(name, own.map(PersistentFile::name))?;
    own.map_or(Ok(()), |file| file.put(&folder))?;
    Ok(folder)
}
