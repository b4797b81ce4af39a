//! A file's new contents, whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{fchown, MetadataExt};
use std::path::Path;

/// Replaces what the file at `path` holds, which is there. The new contents are written beside it and take its place when they
/// are complete, so that a disk that fills leaves the old ones. Permissions and owner stay, and a link stays a link. Where no such file can
/// be made beside it, and where it is no ordinary file (a pipe), it is written in place.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
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
        .and_then(|()| new.write_all(text.as_bytes()))
        .and_then(|()| new.sync_all())
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // The error that is told is why it was written in vain; what is left beside the file is not worth another.
        let _left = fs::remove_file(&beside);
    }
    written
}

/// Finds out now whether `path` can be written, not when there is something to write: it is there afterwards. A new or empty file
/// holds `until`, which says that it is not finished, until it is replaced: however that ends.
pub(crate) fn begin(path: &Path, until: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    let known = file.metadata()?;
    if known.is_file() && known.len() == 0 {
        file.write_all(until.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn what_is_begun_says_that_it_is_not_finished_and_old_contents_stay() {
        let file = std::env::temp_dir().join(format!("terrace-begin-{}", std::process::id()));
        begin(&file, "# PARTIAL\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# PARTIAL\n");
        fs::write(&file, "old").unwrap();
        begin(&file, "# PARTIAL\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        fs::remove_file(&file).unwrap();
        assert!(begin(Path::new("/no/such/folder/file"), "").is_err());
        begin(Path::new("/dev/null"), "x").unwrap();
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
