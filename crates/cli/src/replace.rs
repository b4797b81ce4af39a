//! A file's new contents, whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Replaces what the file at `path` holds, which is there. The new contents are written beside it and take its place when they
/// are complete, so that a disk that fills leaves the old ones. Permissions stay, and a link stays a link. Where nothing can be made
/// beside it the file is written in place.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let beside = path.with_file_name(name);
    let made = fs::OpenOptions::new().write(true).create_new(true).open(&beside);
    let mut new = match made {
        Ok(new) => new,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return fs::write(&path, text),
        Err(e) => return Err(e),
    };
    let written = fs::metadata(&path)
        .and_then(|old| new.set_permissions(old.permissions()))
        .and_then(|()| new.write_all(text.as_bytes()))
        .and_then(|()| new.sync_all())
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // The error that is told is why it was written in vain; what is left beside the file is not worth another.
        let _left = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

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
