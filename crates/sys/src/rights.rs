//! What the kernel gives a program beyond its caller's rights when it is started.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why the kernel would start this program with other rights than ours (execve(2)); `None` where it
/// would not, or the file cannot be looked at. An emulator or a translator that runs the program in
/// its place does not get them.
#[must_use]
pub fn gained_rights(program: &Path) -> Option<&'static str> {
    let status = std::fs::metadata(program).ok()?;
    // SAFETY: both calls take nothing and always succeed.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let set = |bits: u32| status.mode() & bits == bits;
    if set(libc::S_ISUID) && status.uid() != user {
        return Some("it has the set-user-ID bit");
    }
    if set(libc::S_ISGID | libc::S_IXGRP) && status.gid() != group {
        return Some("it has the set-group-ID bit");
    }
    let path = CString::new(program.as_os_str().as_bytes()).ok()?;
    let name = c"security.capability";
    // SAFETY: two C strings; a size of 0 asks for the length alone.
    let bytes = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    (user != 0 && bytes > 0).then_some("it has file capabilities")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_set_user_id_bit_matters_where_the_owner_is_another() {
        let path = std::env::temp_dir().join(format!("terrace-rights-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let set = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o4755);
        assert_eq!(gained_rights(&path), None, "it is our own");
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } == 0 {
            std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).unwrap();
            set(0o4755);
            assert_eq!(gained_rights(&path), Some("it has the set-user-ID bit"));
            set(0o2755);
            assert_eq!(gained_rights(&path), Some("it has the set-group-ID bit"));
            set(0o2745);
            assert_eq!(gained_rights(&path), None, "mandatory locking, not a right");
        } else {
            println!("skipped: changing a file's owner needs root");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(gained_rights(&path), None, "no such file");
    }
}
