//! Recordings are complete or say that they are not, and recording breaks no program: real programs
//! under the emulator and in the translator. Each test says `skipped` without their parts.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod compiled;

use compiled::{done, folder_with, or_skip, own_programs, text, TRANSLATOR};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use terrace_terrace::trace::{Block, EventKind, TraceReader};

/// The sources of a recording that run programs as they are.
const SOURCES: [&str; 2] = ["full", "translated"];

/// The folder with both sources' parts and the programs, or why there is none. Made once.
fn parts() -> Option<&'static Path> {
    static PARTS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    or_skip(PARTS.get_or_init(|| {
        let help = Command::new("qemu-x86_64").arg("-h").output();
        if !help.is_ok_and(|o| text(&o.stdout).contains("-plugin")) {
            return Err("no qemu-x86_64 with plugins (package qemu-user of Debian 12)".into());
        }
        let programs: [(&str, &str, &[&str]); 6] = [
            ("counted.S", "counted", &["-nostdlib", "-static"]),
            ("ends.c", "ends", &["-O1", "-pthread"]),
            ("crowd.c", "crowd", &["-O1", "-pthread"]),
            ("starts.c", "starts", &["-O1"]),
            ("flags.c", "flags", &["-O1"]),
            ("threads.c", "threads", &["-O1", "-pthread"]),
        ];
        let folder = folder_with("complete", own_programs(&programs))?;
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../capture/build.sh");
        done(Command::new(build).arg(folder.join("plugin.so")))?;
        // Programs of another user run these.
        for folder in [folder.as_path(), Path::new(env!("CARGO_TARGET_TMPDIR"))] {
            let open = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder, open).map_err(|e| e.to_string())?;
        }
        Ok(folder)
    }))
}

fn terrace(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command
        .env("TERRACE_TRANSLATOR", folder.join(TRANSLATOR))
        .env("TERRACE_CAPTURE_PLUGIN", folder.join("plugin.so"))
        .current_dir(folder);
    command
}

/// Records `command` into a file of this name; the file is there.
fn record(
    folder: &Path,
    source: &str,
    name: &str,
    flags: &[&str],
    command: &[&str],
) -> (Output, PathBuf) {
    let file = folder.join(format!("{name}-{source}.trace"));
    let mut record = terrace(folder);
    record.args(["record", "--quiet", "--source", source, "-o"]).arg(&file).args(flags);
    let output = record.arg("--").args(command).output().expect("terrace starts");
    (output, file)
}

fn open(file: &Path) -> TraceReader<BufReader<std::fs::File>> {
    TraceReader::open(BufReader::new(std::fs::File::open(file).unwrap())).unwrap()
}

fn info(file: &Path) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    let output = command.args(["trace", "info", "--json"]).arg(file).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn programs_started(file: &Path) -> Vec<String> {
    let mut reader = open(file);
    let mut block = Block::new().unwrap();
    let mut all = Vec::new();
    while reader.next_block(&mut block).unwrap() {
        all.extend(block.events().iter().filter_map(|e| match &e.what {
            EventKind::Exec { name } => Some(name.clone()),
            _ => None,
        }));
    }
    all
}

/// Root may be another user, and make files that belong to others.
fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    let root = output.is_ok_and(|o| text(&o.stdout).trim() == "0");
    if !root {
        println!("skipped: needs root");
    }
    root
}

#[test]
fn however_threads_end_what_they_did_is_there() {
    let Some(folder) = parts() else { return };
    for source in SOURCES {
        for (how, threads) in [("exit", 4), ("kill", 2), ("abort", 2), ("exec", 3), ("leave", 2)] {
            let counts = folder.join(format!("counts-{how}-{source}"));
            let name = counts.to_str().unwrap();
            let flags = ["--addresses", "0x600000000000..0x600000001000"];
            let command = ["./ends", name, how, &threads.to_string()];
            let (output, file) = record(folder, source, how, &flags, &command);
            let said = text(&output.stderr);
            assert_eq!(said, "", "{source} {how}");
            let (code, signal) = (output.status.code(), output.status.signal());
            let expected = match how {
                "exit" => (Some(3), None),
                "kill" => (None, Some(9)),
                "abort" => (None, Some(6)),
                _ => (Some(0), None),
            };
            assert_eq!((code, signal), expected, "{source} {how}");
            let words = std::fs::read(&counts).unwrap();
            let word = |i: usize| u64::from_le_bytes(words[i * 64..i * 64 + 8].try_into().unwrap());
            let counted: u64 = (0..threads).map(word).sum();
            assert!(counted > 0, "{source} {how}");
            let info = info(&file);
            let stores = info["stores"].as_u64().unwrap();
            // A thread may be stopped between an increment and what is said of it.
            let differs = stores.abs_diff(counted);
            assert!(differs <= threads as u64, "{source} {how}: {stores} of {counted}: {info}");
            assert_eq!(info["complete"], true, "{source} {how}: {info}");
        }
    }
}

#[test]
fn more_threads_than_large_rings_are_recorded() {
    let Some(folder) = parts() else { return };
    for source in SOURCES {
        let (output, file) = record(folder, source, "crowd", &[], &["./crowd"]);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
        let said = text(&output.stdout);
        let (start, length) = said.trim().split_once(' ').unwrap();
        let start = u64::from_str_radix(start.trim_start_matches("0x"), 16).unwrap();
        let words = start..start + length.parse::<u64>().unwrap();
        let (mut reader, mut stores) = (open(&file), 0);
        assert!(reader.is_complete(), "{source}: {:?}", reader.shortcomings());
        let mut block = Block::new().unwrap();
        while reader.next_block(&mut block).unwrap() {
            let accesses = block.addresses().iter().zip(block.kinds());
            stores += accesses.filter(|(a, k)| words.contains(a) && k.is_store()).count();
        }
        assert_eq!(stores, 300_000, "{source}");
    }
}

#[test]
fn programs_start_others_as_they_do_unrecorded() {
    let Some(folder) = parts() else { return };
    for source in SOURCES {
        for how in ["self", "abort"] {
            let native = Command::new("./starts").arg(how).current_dir(folder).output().unwrap();
            let (output, file) = record(folder, source, how, &[], &["./starts", how]);
            assert_eq!(text(&output.stdout), text(&native.stdout), "{source} {how}");
            assert_eq!(text(&output.stderr), "", "{source} {how}");
            assert_eq!(output.status.code(), Some(7), "{source} {how}");
            assert_eq!(info(&file)["complete"], true, "{source} {how}");
        }
    }
    let left = std::fs::read_dir(folder).unwrap().flatten();
    let cores = left.filter(|f| f.file_name().to_string_lossy().contains(".core"));
    assert_eq!(cores.count(), 0, "the emulator's own core files");
}

#[test]
fn a_program_that_gives_up_its_user_is_followed() {
    let Some(folder) = parts().filter(|_| is_root()) else { return };
    // The way to the parts is closed to others.
    let hidden = folder.join("hidden");
    std::fs::create_dir_all(&hidden).unwrap();
    for part in ["terrace-translate", "plugin.so"] {
        std::fs::copy(folder.join(part), hidden.join(part)).unwrap();
    }
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o700)).unwrap();
    for source in SOURCES {
        let file = folder.join(format!("drop-{source}.trace"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command
            .env("TERRACE_TRANSLATOR", hidden.join("terrace-translate"))
            .env("TERRACE_CAPTURE_PLUGIN", hidden.join("plugin.so"))
            .current_dir(folder)
            .args(["record", "--quiet", "--source", source, "-o"])
            .arg(&file)
            .args(["--", "./starts", "drop"]);
        let output = command.output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stdout), text(&output.stderr)),
            (Some(7), "dropped\n".to_owned(), String::new()),
            "{source}"
        );
        let started = programs_started(&file);
        assert!(started.iter().any(|name| name.ends_with("/echo")), "{source}: {started:?}");
        assert_eq!(info(&file)["complete"], true, "{source}");
    }
}

#[test]
fn programs_with_rights_of_their_own_are_refused_or_named() {
    let Some(folder) = parts().filter(|_| is_root()) else { return };
    let other = folder.join("starts-as-other");
    std::fs::copy(folder.join("starts"), &other).unwrap();
    std::os::unix::fs::chown(&other, Some(65_534), Some(65_534)).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
    for source in SOURCES {
        let (output, file) = record(folder, source, "given", &[], &["./starts-as-other", "again"]);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(3), 1), "{said}");
        assert!(said.contains("set-user-ID") && !file.exists(), "{said}");
        let command = ["./starts", "run", "./starts-as-other"];
        let (output, file) = record(folder, source, "started", &[], &command);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(7), "again\n"));
        let info = info(&file);
        assert_eq!(info["complete"], false, "{source}: {info}");
        let notes = info["notes"].to_string();
        assert!(notes.contains("starts-as-other") && notes.contains("unrecorded"), "{notes}");
        // Each reader repeats it.
        for reader in [["trace", "cat"].as_slice(), &["trace", "info"], &["report", "--json"]] {
            let output = terrace(folder).args(reader).arg(&file).output().unwrap();
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(
                said.contains("recording is incomplete"),
                "{reader:?}: {}",
                text(&output.stderr)
            );
        }
    }
}

#[test]
fn a_new_pid_namespace_is_followed() {
    let Some(folder) = parts().filter(|_| is_root()) else { return };
    for source in SOURCES {
        let command = ["unshare", "-pf", "--mount-proc", "sh", "-c", "./counted; exit 6"];
        let (output, file) = record(folder, source, "namespace", &[], &command);
        if output.status.code() == Some(1) {
            println!("skipped: {}", text(&output.stderr));
            return;
        }
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(6), ""));
        assert_eq!(info(&file)["complete"], true, "{source}");
        let started = programs_started(&file);
        assert!(started.iter().any(|name| name.ends_with("counted")), "{source}: {started:?}");
        let reader = open(&file);
        let wide = reader.blocks().iter().map(|b| u64::from(b.stores)).sum::<u64>();
        assert!(wide > 2002, "{source}");
    }
}

#[test]
fn libraries_are_found_in_the_folder_of_the_program() {
    let Some(folder) = parts() else { return };
    let (library, program) = (folder.join("libbeside.so"), folder.join("beside"));
    let write = |name: &str, code: &str| {
        let path = folder.join(name);
        std::fs::write(&path, code).unwrap();
        path
    };
    let inner = write("beside-library.c", "int answer(void) { return 42; }\n");
    let outer =
        write("beside-program.c", "int answer(void);\nint main(void) { return answer(); }\n");
    done(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(inner)).unwrap();
    for tags in ["--enable-new-dtags", "--disable-new-dtags"] {
        let mut link = Command::new("cc");
        link.arg("-o").arg(&program).arg(&outer).arg("-L").arg(folder).arg("-lbeside");
        done(link.arg(format!("-Wl,-rpath,$ORIGIN,{tags}"))).unwrap();
        for source in SOURCES {
            let (output, _) = record(folder, source, "beside", &[], &["./beside"]);
            assert_eq!(output.status.code(), Some(42), "{source}: {}", text(&output.stderr));
        }
    }
}

#[test]
fn single_steps_and_alignment_checks_reach_the_program_alone() {
    let Some(folder) = parts() else { return };
    let native = Command::new("./flags").current_dir(folder).output().unwrap();
    assert_eq!(native.status.code(), Some(5));
    let (output, file) = record(folder, "translated", "flags", &[], &["./flags"]);
    let said = text(&output.stderr);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(5), text(&native.stdout)),
        "{said}"
    );
    assert!(said.contains("trap flag"), "{said}");
    let info = info(&file);
    assert_eq!(info["complete"], false, "{info}");
    assert!(info["notes"].to_string().contains("went on unrecorded"), "{info}");
}

#[test]
fn a_full_disk_keeps_what_fits_and_the_recorder_counts_that() {
    let Some(folder) = parts() else { return };
    for source in SOURCES {
        let file = folder.join(format!("limited-{source}.trace"));
        let limited = folder.join(format!("limited-{source}"));
        std::fs::create_dir_all(&limited).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=32k", "none"]).arg(&limited);
        if !is_root() || done(&mut mount).is_err() {
            println!("skipped: no small file system can be mounted");
            return;
        }
        let trace = limited.join("run.trace");
        let mut record = terrace(folder);
        record.args(["record", "--source", source, "-o"]).arg(&trace);
        let output = record.args(["--", "./threads"]).output().unwrap();
        let copied = std::fs::copy(&trace, &file);
        done(Command::new("umount").arg(&limited)).unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("recording stopped early"), "{said}");
        let bytes = copied.unwrap();
        let info = info(&file);
        assert_eq!(info["complete"], false, "{info}");
        let kept = info["accesses"].as_u64().unwrap();
        assert!(said.contains(&format!("recorded {kept} of ")), "{said}: {info}");
        assert!(said.contains(&format!(": {bytes} bytes")), "{said}: {bytes}");
    }
}

#[test]
fn a_limit_of_file_sizes_does_not_end_the_recorder() {
    let Some(folder) = parts() else { return };
    let line = "ulimit -f 100; exec \"$0\" record -o limit.trace -- ./threads";
    let output = Command::new("sh")
        .args(["-c", line, env!("CARGO_BIN_EXE_terrace")])
        .env("TERRACE_CAPTURE_PLUGIN", folder.join("plugin.so"))
        .current_dir(folder)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.signal(), said.lines().count()), (None, 1), "{said}");
    assert!(output.status.code().is_some_and(|c| c > 0) && said.contains("ulimit"), "{said}");
}

#[test]
fn the_translator_shows_the_programs_command_line_to_others() {
    let Some(folder) = parts() else { return };
    let line = "ps -o args= -p $$; tr '\\0' '\\n' < /proc/$$/environ | grep ^SHOWN; \
                cat /proc/self/cmdline";
    let command = ["sh", "-c", line, "one", "two words"];
    let native = Command::new(command[0])
        .args(&command[1..])
        .env("SHOWN", "as it is")
        .current_dir(folder)
        .output()
        .unwrap();
    let file = folder.join("shown.trace");
    let mut record = terrace(folder);
    record.args(["record", "--quiet", "--source", "translated", "-o"]).arg(&file).arg("--");
    let output = record.args(command).env("SHOWN", "as it is").output().unwrap();
    assert_eq!(text(&output.stdout), text(&native.stdout), "{}", text(&output.stderr));
}

#[test]
fn sanitizers_find_the_memory_they_want_in_the_translator() {
    let Some(folder) = parts() else { return };
    let source = folder.join("sanitized.c");
    std::fs::write(&source, "int main(void) { return 11; }\n").unwrap();
    for sanitizer in ["thread", "address", "undefined"] {
        let program = folder.join(format!("sanitized-{sanitizer}"));
        let mut compile = Command::new("cc");
        compile.arg(format!("-fsanitize={sanitizer}")).arg("-o").arg(&program).arg(&source);
        let native = done(&mut compile)
            .and_then(|()| Command::new(&program).output().map_err(|e| e.to_string()));
        if !native.is_ok_and(|output| output.status.code() == Some(11)) {
            println!("skipped: no {sanitizer} sanitizer that runs here");
            continue;
        }
        let (output, _) =
            record(folder, "translated", sanitizer, &[], &[program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(11), "{sanitizer}: {}", text(&output.stderr));
    }
}

#[test]
fn what_outlives_the_command_is_named() {
    let Some(folder) = parts() else { return };
    for source in SOURCES {
        // It is ended below by its own pid, and ends by itself should that fail.
        let loops = "i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done";
        let busy = format!("sh -c '{loops}' > /dev/null 2>&1 & echo $!; exit 3");
        let command = ["sh", "-c", &busy];
        let (output, file) = record(folder, source, "outlives", &[], &command);
        let pid = text(&output.stdout);
        assert_eq!(output.status.code(), Some(3), "{source}");
        done(Command::new("kill").arg(pid.trim())).unwrap();
        let info = info(&file);
        assert_eq!(info["complete"], false, "{source}: {info}");
        assert!(info["notes"].to_string().contains("outlived the command"), "{source}: {info}");
    }
}

#[test]
fn a_new_root_directory_is_followed_or_named() {
    let Some(folder) = parts().filter(|_| is_root()) else { return };
    let root = folder.join("root");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::copy(folder.join("counted"), root.join("counted")).unwrap();
    for source in SOURCES {
        let command = ["chroot", root.to_str().unwrap(), "/counted"];
        let (output, file) = record(folder, source, "chroot", &[], &command);
        assert_eq!(output.status.code(), Some(5), "{source}: {}", text(&output.stderr));
        let followed = programs_started(&file).iter().any(|name| name == "/counted");
        let info = info(&file);
        assert_eq!(info["complete"], followed, "{source}: {info}");
        assert_eq!(followed, source == "translated", "{source}: {info}");
    }
}
