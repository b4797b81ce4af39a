use super::*;
use std::fs;
use std::path::Path;

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("terrace-filetrace-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    fs::canonicalize(dir).unwrap()
}

/// A shell's lines, run in this folder; `None`, said so, where the kernel allows no sandbox.
fn traced(cwd: &Path, script: &str, limit: Nanos) -> Option<FileUse> {
    let command = TracedCommand {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: cwd.to_path_buf(),
        stdin: None,
    };
    match trace_files(command, limit, &AtomicBool::new(false)) {
        Ok(used) => Some(used),
        Err(e) if matches!(e.errno(), libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            println!("skipped: no sandbox here: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn files_and_programs_of_all_processes_are_noted_and_nothing_is_written() {
    let dir = folder("notes");
    for name in ["read", "asked", "kept"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let script = "cat ./read >/dev/null; test -e asked; test -e absent; \
                  (cat read > made; cat made; echo changed > kept; rm read; echo x > \
                  /etc/terrace-x)";
    let Some(used) = traced(&dir, script, Nanos::secs(60)) else { return };
    assert!(used.ended, "{used:?}");
    let has = |name: &str| used.paths.iter().any(|p| p.ends_with(name) && p.starts_with(&dir));
    assert!(has("read") && has("asked") && !has("absent"), "{used:?}");
    assert!(used.programs.iter().any(|p| p.ends_with("cat")), "{used:?}");
    assert!(used.paths.iter().all(|p| p.is_absolute()));
    // It could make a file and read it, and the folder here is as it was.
    assert!(has("made"), "{used:?}");
    let mut left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["asked", "kept", "read"]);
    assert_eq!(fs::read_to_string(dir.join("kept")).unwrap(), "kept");
    assert!(!Path::new("/etc/terrace-x").exists());
    let _ = fs::remove_dir_all(dir);
}

#[test]
fn what_runs_on_is_ended_with_all_its_processes() {
    let dir = folder("long");
    let Some(used) = traced(&dir, "cat /dev/zero & read x </dev/null; wait", Nanos::millis(200))
    else {
        return;
    };
    assert!(!used.ended);
    assert!(used.programs.iter().any(|p| p.ends_with("sh")));
    let _ = fs::remove_dir_all(dir);
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let command = TracedCommand {
        program: "/no/such/program".into(),
        arguments: vec![],
        environment: vec![],
        cwd: "/".into(),
        stdin: None,
    };
    let error = trace_files(command, Nanos::secs(1), &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}
