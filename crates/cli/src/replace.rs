//! A file's new contents, whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{fchown, MetadataExt};
use std::path::Path;

/// Replaces what the file at `path` holds, which is there. The new contents are written beside it
/// and take its place when they are complete, so that a disk that fills leaves the old ones.
/// Permissions and owner stay, and a link stays a link. Where no such file can be made beside it,
/// and where it is no ordinary file (a pipe), it is written in place.
pub(crate) fn replace(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    if !fs::metadata(path)?.is_file() {
        return fs::write(path, text);
    }
    let path = fs::canonicalize(path)?;
    let old = fs::metadata(&path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let beside = path.with_file_name(name);
    let made = fs::OpenOptions::new().write(true).create_new(true).open(&beside);
    let mut new = match made {
        Ok(new) => new,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return fs::write(&path, text),
        Err(e) => return Err(e),
    };
    if fchown(&new, Some(old.uid()), Some(old.gid())).is_err() {
        fs::remove_file(&beside)?;
        return fs::write(&path, text);
    }
    let written = new
        .set_permissions(old.permissions())
        .and_then(|()| new.write_all(text.as_ref()))
        .and_then(|()| new.sync_all())
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // The error that is reported is why it was written in vain; what is left beside the file is
        // not worth another.
        let _left = fs::remove_file(&beside);
    }
    written
}

/// Writes a file, new or in place of what is there, whole or not at all.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    match fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut new) => {
            let written = new.write_all(text.as_ref()).and_then(|()| new.sync_all());
            if written.is_err() {
                // As above: the error that is reported is why.
                let _left = fs::remove_file(path);
            }
            written
        }
        // A link to nothing is there and is no file: what it names is made.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && fs::metadata(path).is_err() => {
            fs::write(path, text)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => replace(path, text),
        Err(e) => Err(e),
    }
}

/// Whether both name the same file that is there.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Finds out now whether `path` can be written, not when there is something to write: it is there
/// afterwards. A new or empty file holds `until`, which says that it is not finished, until it is
/// replaced: however that ends.
pub(crate) fn begin(path: &Path, until: &str) -> io::Result<Begun> {
    let there = fs::metadata(path).is_ok();
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    let known = file.metadata()?;
    if known.is_file() && known.len() == 0 {
        file.write_all(until.as_bytes())?;
        return Ok(if there { Begun::Filled } else { Begun::Made });
    }
    Ok(Begun::Kept)
}

/// What [`begin`] did to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// There was none.
    Made,
    /// It was empty.
    Filled,
    /// It has its old contents, or is no ordinary file.
    Kept,
}

/// There is nothing to write: a file that was begun is as it was before, that is, gone or empty.
/// Not if others wrote to it since.
pub(crate) fn unbegin(path: &Path, until: &str, begun: Begun) -> io::Result<()> {
    if begun == Begun::Kept || fs::read(path)? != until.as_bytes() {
        return Ok(());
    }
    match begun {
        Begun::Made => fs::remove_file(fs::canonicalize(path)?),
        _ => fs::write(path, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn what_is_begun_says_that_it_is_not_finished_and_old_contents_stay() {
        let file = std::env::temp_dir().join(format!("terrace-begin-{}", std::process::id()));
        let text = "# PARTIAL\n";
        assert_eq!(begin(&file, text).unwrap(), Begun::Made);
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        unbegin(&file, text, Begun::Made).unwrap();
        assert!(!file.exists());
        fs::write(&file, "").unwrap();
        assert_eq!(begin(&file, text).unwrap(), Begun::Filled);
        unbegin(&file, text, Begun::Filled).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "");
        fs::write(&file, "old").unwrap();
        assert_eq!(begin(&file, text).unwrap(), Begun::Kept);
        unbegin(&file, text, Begun::Kept).unwrap();
        unbegin(&file, text, Begun::Made).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old", "somebody wrote it meanwhile");
        fs::remove_file(&file).unwrap();
        assert!(begin(Path::new("/no/such/folder/file"), "").is_err());
        assert_eq!(begin(Path::new("/dev/null"), "x").unwrap(), Begun::Kept);
    }

    #[test]
    fn what_cannot_be_written_whole_is_not_there() {
        // A device that is always full stands in for a disk that is.
        assert_eq!(
            write(Path::new("/dev/full"), "x").unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        let file = std::env::temp_dir().join(format!("terrace-write-{}", std::process::id()));
        write(&file, "first").unwrap();
        write(&file, "second").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        let link = file.with_extension("link");
        symlink(&file, &link).unwrap();
        assert!(
            same(&file, &link)
                && !same(&file, Path::new("/dev/null"))
                && !same(&file, Path::new("/no/such"))
        );
        fs::remove_file(&file).unwrap();
        write(&link, "through a link to nothing").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "through a link to nothing");
        fs::remove_file(&file).unwrap();
        fs::remove_file(&link).unwrap();
    }

    #[test]
    fn contents_change_and_nothing_else_does() {
        let folder = std::env::temp_dir().join(format!("terrace-replace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("m.toml"), folder.join("link.toml"));
        fs::write(&file, "old and longer").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("m.toml", &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(replace(&folder.join("none"), "x").is_err());
        replace(Path::new("/dev/null"), "x").unwrap();
        // What cannot be made beside it is not half written: somebody else's file is there.
        let taken = folder.join(format!("m.toml.new-{}", std::process::id()));
        fs::write(&taken, "theirs").unwrap();
        assert!(replace(&file, "newer").is_err());
        assert_eq!(
            (fs::read_to_string(&file).unwrap(), fs::read_to_string(&taken).unwrap()),
            ("new".into(), "theirs".into())
        );
        fs::remove_file(&taken).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
