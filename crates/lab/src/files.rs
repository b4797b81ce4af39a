//! Files for the guest: what is at a path of the host, at the same path of the guest, symbolic
//! links as links.

use crate::error::{io, LabError, Result};
use crate::wire::{self, ArchiveEntry, ArchiveWriter};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Folders that the guest's kernel and agent fill.
const GUEST_OWN: [&str; 4] = ["/proc", "/sys", "/dev", "/run/terrace"];
/// Symbolic links on the way to one file: the kernel's limit (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// What a path of the guest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CarriedPath {
    /// A file with the host's contents.
    File {
        /// The host's file.
        host_path: PathBuf,
        /// Whether the guest's file keeps the time of its last change. Programs of ours do not, so
        /// that one that was built again runs as before.
        keep_time: bool,
    },
    /// A symbolic link.
    Link {
        /// Where it points, as the host has it.
        target: String,
    },
    /// A folder.
    Folder {
        /// Its permission bits.
        mode: u32,
    },
}

/// Everything that the guest is given, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CarriedFiles {
    by_path: BTreeMap<String, CarriedPath>,
}

impl CarriedFiles {
    /// A file of the host at another path of the guest, without its time.
    pub fn add_as(&mut self, host_path: &Path, guest_path: &str) {
        let file = CarriedPath::File { host_path: host_path.to_path_buf(), keep_time: false };
        self.by_path.insert(guest_path.to_string(), file);
    }

    /// What is at an absolute path of the host, with the links on the way. Nothing is added for
    /// folders that the guest has of its own, nor for devices, sockets and the like.
    ///
    /// # Errors
    /// [`LabError::Io`] where there is nothing at that path.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        self.resolve(path).map(drop)
    }

    /// As [`CarriedFiles::add`]; gives the path that the links lead to.
    fn resolve(&mut self, path: &Path) -> Result<PathBuf> {
        let mut todo: VecDeque<String> = names(path)?.into();
        let mut done = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                done.pop();
                continue;
            }
            let next = done.join(name);
            if is_guests_own(&next) {
                return Ok(next);
            }
            let meta = fs::symlink_metadata(&next).map_err(io("reading", &next))?;
            let key = text(&next)?;
            if meta.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    let source = std::io::Error::from_raw_os_error(ELOOP);
                    return Err(LabError::Io { action: "reading", path: next, source });
                }
                let target = fs::read_link(&next).map_err(io("reading", &next))?;
                for name in names(&target)?.into_iter().rev() {
                    todo.push_front(name);
                }
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                self.by_path.insert(key, CarriedPath::Link { target: text(&target)? });
                continue;
            }
            if todo.is_empty() {
                let mode = meta.permissions().mode() & 0o7777;
                if meta.is_dir() {
                    self.by_path.entry(key).or_insert(CarriedPath::Folder { mode });
                } else if meta.is_file() {
                    let file = CarriedPath::File { host_path: next.clone(), keep_time: true };
                    self.by_path.entry(key).or_insert(file);
                }
            }
            done = next;
        }
        Ok(done)
    }

    /// A folder with everything in it.
    ///
    /// # Errors
    /// [`LabError::Io`] where something in it cannot be read, [`LabError::TooManyFiles`].
    pub fn add_folder(&mut self, path: &Path) -> Result<()> {
        let top = self.resolve(path)?;
        let mut folders = vec![top];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(io("reading", &folder))? {
                let entry = entry.map_err(io("reading", &folder))?;
                let (path, kind) = (entry.path(), entry.file_type());
                let kind = kind.map_err(io("reading", &path))?;
                if kind.is_symlink() {
                    let target = fs::read_link(&path).map_err(io("reading", &path))?;
                    let link = CarriedPath::Link { target: text(&target)? };
                    self.by_path.insert(text(&path)?, link);
                } else if kind.is_dir() || kind.is_file() {
                    self.add(&path)?;
                }
                if kind.is_dir() && !is_guests_own(&path) {
                    folders.push(path);
                }
                self.check_count()?;
            }
        }
        Ok(())
    }

    fn check_count(&self) -> Result<()> {
        // Some entries are the archive's own.
        let most = wire::MAX_ENTRIES - 8;
        if self.by_path.len() <= most {
            return Ok(());
        }
        Err(LabError::TooManyFiles { most })
    }

    /// Everything, by the guest's path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &CarriedPath)> {
        self.by_path.iter().map(|(path, what)| (path.as_str(), what))
    }

    /// Put everything into an archive that may have `space` bytes.
    pub(crate) fn put(&self, archive: &mut ArchiveWriter, space: u64) -> Result<()> {
        self.check_count()?;
        let mut job_bytes = 0;
        for (name, what) in self.iter() {
            let entry = |mode, changed_s, data| ArchiveEntry { name, mode, changed_s, data };
            match what {
                CarriedPath::Link { target } => {
                    archive.put(&entry(wire::S_IFLNK | 0o777, 0, target.as_bytes()));
                }
                CarriedPath::Folder { mode } => archive.put(&entry(wire::S_IFDIR | mode, 0, b"")),
                CarriedPath::File { host_path, keep_time } => {
                    let meta = fs::metadata(host_path).map_err(io("reading", host_path))?;
                    // Before it is read: what is too large does not have to fit this memory.
                    job_bytes += meta.len();
                    if job_bytes > space {
                        return Err(LabError::JobTooLarge { job_bytes, room_bytes: space });
                    }
                    let data = fs::read(host_path).map_err(io("reading", host_path))?;
                    let changed = if *keep_time { meta.mtime().max(0) as u64 } else { 0 };
                    archive.put(&entry(meta.permissions().mode() & 0o777, changed, &data));
                }
            }
        }
        Ok(())
    }
}

/// errno of too many symbolic links.
const ELOOP: i32 = 40;

/// The names between a path's slashes; `..` is one of them.
fn names(path: &Path) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(text(Path::new(name))?),
            Component::ParentDir => out.push("..".to_string()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(out)
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_string).ok_or_else(|| LabError::Program {
        program: path.display().to_string(),
        why: "its name is not UTF-8, which the lab cannot carry; rename it".into(),
    })
}

/// Whether the guest has this path, and what is below it, of its own.
#[must_use]
pub fn is_guests_own(path: &Path) -> bool {
    GUEST_OWN.iter().any(|own| path.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("terrace-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        fs::canonicalize(dir).unwrap()
    }

    #[test]
    fn links_stay_links_and_files_lie_where_they_lead() {
        let dir = folder("links");
        fs::create_dir(dir.join("usr")).unwrap();
        fs::write(dir.join("usr/tool-3"), "x").unwrap();
        symlink("tool-3", dir.join("usr/tool")).unwrap();
        symlink(dir.join("usr"), dir.join("bin")).unwrap();
        let mut files = CarriedFiles::default();
        files.add(&dir.join("bin/./tool")).unwrap();
        let at = |name: &str| dir.join(name).display().to_string();
        let got: Vec<_> =
            files.iter().filter(|(p, _)| p.starts_with(dir.to_str().unwrap())).collect();
        assert_eq!(
            got,
            [
                (at("bin").as_str(), &CarriedPath::Link { target: at("usr") }),
                (at("usr/tool").as_str(), &CarriedPath::Link { target: "tool-3".into() }),
                (
                    at("usr/tool-3").as_str(),
                    &CarriedPath::File { host_path: dir.join("usr/tool-3"), keep_time: true }
                ),
            ]
        );
        let mut archive = ArchiveWriter::new();
        files.put(&mut archive, 1 << 20).unwrap();
        let bytes = archive.finish();
        let entries = wire::read_archive(&bytes).unwrap();
        let tool = entries.iter().find(|e| e.name == at("usr/tool-3")).unwrap();
        assert_eq!((tool.data, tool.changed_s > 1_000_000_000), (&b"x"[..], true));
        assert!(matches!(
            files.put(&mut ArchiveWriter::new(), 0),
            Err(LabError::JobTooLarge { .. })
        ));
        let _ = fs::remove_dir_all(dir);
    }

    #[test]
    fn loops_end_and_what_is_missing_is_named() {
        let dir = folder("loop");
        symlink("b", dir.join("a")).unwrap();
        symlink("a", dir.join("b")).unwrap();
        let mut files = CarriedFiles::default();
        let why = files.add(&dir.join("a")).unwrap_err().to_string();
        assert!(why.contains("symbolic links"), "{why}");
        let why = files.add(&dir.join("none")).unwrap_err().to_string();
        assert!(why.contains("none"), "{why}");
        files.add(Path::new("/proc/self/maps")).unwrap();
        assert!(files.iter().all(|(path, _)| !path.starts_with("/proc")));
        let _ = fs::remove_dir_all(dir);
    }

    #[test]
    fn folders_bring_what_is_in_them() {
        let dir = folder("whole");
        fs::create_dir_all(dir.join("in/deep/empty")).unwrap();
        fs::write(dir.join("in/deep/file"), "1").unwrap();
        symlink("/no/such/place", dir.join("in/broken")).unwrap();
        let mut files = CarriedFiles::default();
        files.add_folder(&dir.join("in")).unwrap();
        let below: Vec<&str> =
            files.iter().filter_map(|(path, _)| path.strip_prefix(dir.to_str().unwrap())).collect();
        assert_eq!(below, ["/in", "/in/broken", "/in/deep", "/in/deep/empty", "/in/deep/file"]);
        let _ = fs::remove_dir_all(dir);
    }
}
