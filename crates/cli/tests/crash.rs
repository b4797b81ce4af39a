//! `terrace crash`: whole programs recorded, crashed, restarted and judged. Each test needs a C
//! compiler and a cargo that can fetch the translator's one dependency, and says `skipped` without.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod compiled;

use compiled::{done, folder_with, or_skip, text, TestProgram, TRANSLATOR};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder with the translator and the programs, or why there is none. Made once.
fn parts() -> Option<&'static Path> {
    static PARTS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    or_skip(PARTS.get_or_init(|| {
        let header = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../capi/include");
        let program = |source: &str, name: &str, bug: &str| {
            let flags = ["-std=gnu11", "-O1", "-g", "-pthread", bug, header, "-lm"];
            TestProgram::new(source, name, &flags)
        };
        let mut programs = vec![
            program("tests/programs/stores.c", "stores", "-DPLAIN"),
            program("tests/programs/survive.c", "survive", "-DPLAIN"),
            program("tests/programs/power.c", "power", "-DPLAIN"),
            program("../../examples/crash/cg.c", "cg", "-DPLAIN"),
        ];
        for (name, bugs) in [("list", 4), ("log", 3), ("btree", 3), ("mapped", 2)] {
            programs.extend((0..=bugs).map(|bug| {
                let source = format!("../../examples/crash/{name}.c");
                program(&source, &format!("{name}-{bug}"), &format!("-DBUG={bug}"))
            }));
        }
        folder_with("crash", programs)
    }))
}

fn crash(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("crash")
        .args(arguments)
        .current_dir(folder)
        .env("TERRACE_TRANSLATOR", folder.join(TRANSLATOR))
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

/// Processes of this program whose arguments contain a word.
fn running(folder: &Path, word: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let names = processes.filter_map(|p| std::fs::read_to_string(p.path().join("cmdline")).ok());
    let ours = folder.join("survive").display().to_string();
    names.filter(|name| name.starts_with(&ours) && name.contains(word)).count()
}

/// The one line that a command said.
fn line(output: &Output) -> String {
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn values_of_all_kinds_of_stores_are_recorded() {
    let Some(folder) = parts() else { return };
    let arguments = ["run", "--at", "iteration", "--caches", "none", "--json", "--", "./stores"];
    let found = json(&crash(folder, &arguments));
    let outcomes = &found["outcomes"];
    assert_eq!(found["total"]["restarts"], 64, "{outcomes}");
    assert_eq!(found["total"]["successes"], 64, "{outcomes}");
    // Without caches nothing is inconsistent.
    let each = found["results"].as_array().unwrap();
    assert!(each.iter().all(|r| r["inconsistent_bytes_of_all"] == 0 && r["dirty_lines"] == 0));
    let done: Vec<i64> = each.iter().map(|r| r["iterations_done"].as_i64().unwrap()).collect();
    assert_eq!(done, (1..=64).collect::<Vec<i64>>());
}

#[test]
fn early_crashes_of_cg_recompute_and_late_ones_do_not() {
    let Some(folder) = parts() else { return };
    let arguments = ["run", "--at", "phase:20", "--report", "cg.html", "--json", "--", "./cg", "S"];
    let found = json(&crash(folder, &arguments));
    assert_eq!(found["total"]["restarts"], 60);
    assert!((0..3).all(|phase| found["phases"][phase]["restarts"] == 20), "{}", found["phases"]);
    assert_eq!(found["reference_iterations"], 15);
    let share = |phase: usize| found["phases"][phase]["share"].as_f64().unwrap();
    // All of class S fits the caches: a restart begins at the first guess with fewer iterations.
    assert!(share(0) > share(2), "{}", found["phases"]);
    let path = found["call_paths"][0]["call_path"].to_string();
    assert!(path.contains("main"), "{path}");
    let page = std::fs::read_to_string(folder.join("cg.html")).unwrap();
    assert!(page.contains("Restarts that recompute, by phase") && page.contains("cg S"));
}

#[test]
fn the_same_seed_gives_the_same_crashes_and_the_same_ends_of_them() {
    let Some(folder) = parts() else { return };
    let facts = |seed: &str| -> Vec<(Value, Value, Value)> {
        let arguments = ["run", "--count", "20", "--seed", seed, "--json", "--", "./survive"];
        let found = json(&crash(folder, &arguments));
        let results = found["results"].as_array().unwrap();
        results
            .iter()
            .map(|r| (r["instruction"].clone(), r["outcome"].clone(), r["iterations_done"].clone()))
            .collect()
    };
    let first = facts("7");
    assert_eq!(first, facts("7"));
    assert_ne!(first, facts("8"));
}

#[test]
fn advice_is_to_flush_the_vector_that_iterations_hand_on() {
    let Some(folder) = parts() else { return };
    let arguments = ["advise", "--wanted", "0.9", "--count", "20", "--json", "--", "./power"];
    let found = json(&crash(folder, &arguments));
    assert!(found["trials"][0]["share"].as_f64().unwrap() < 0.9, "{found}");
    let advice = &found["advice"];
    assert!(advice["share"].as_f64().unwrap() >= 0.9, "{found}");
    let flushes = advice["flushes"].as_array().unwrap();
    assert_eq!((flushes.len(), &flushes[0]["object"]), (1, &Value::from("x")), "{found}");
}

/// Compiles a program of `examples/crash` in Rust, with a defect planted or 0.
fn compile_rust(folder: &Path, name: &str, bug: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/crash");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2021", "-O", "-g", "-o"]).env("BUG", bug);
    rustc.arg(folder.join(format!("{name}-rs-{bug}"))).arg(source.join(format!("{name}.rs")));
    done(&mut rustc).unwrap();
}

#[test]
fn numerical_programs_in_rust_verify() {
    let Some(folder) = parts() else { return };
    for name in ["cg", "ft", "mg", "kmeans"] {
        compile_rust(folder, name, "0");
        done(Command::new(folder.join(format!("{name}-rs-0"))).arg("S")).unwrap();
    }
}

#[test]
fn correct_structures_have_no_bad_image_and_planted_bugs_are_found() {
    let Some(folder) = parts() else { return };
    for (name, bug) in [("list", "0"), ("list", "3"), ("log", "2"), ("btree", "0"), ("btree", "3")]
    {
        compile_rust(folder, name, bug);
    }
    for name in ["list", "log", "btree", "list-rs", "btree-rs"] {
        let output = crash(folder, &["check", "--json", "--", &format!("./{name}-0")]);
        let found = json(&output);
        assert_eq!(output.status.code(), Some(0), "{name}: {found}");
        assert!(found["images"].as_u64().unwrap() > 20, "{name}: {found}");
        assert_eq!(found["misuses"].as_array().unwrap().len(), 0, "{name}: {found}");
    }
    // Program, whether an image is refused, and one finding with the function it is in.
    let planted = [
        ("list-1", true, "never_persisted", "push"),
        ("list-2", true, "", ""),
        ("list-3", true, "written_between_flush_and_fence", "push"),
        ("list-4", false, "double_flush", "push"),
        ("log-1", true, "", ""),
        ("log-2", false, "missing_fence", "append"),
        ("log-3", false, "never_persisted", "append"),
        ("btree-1", true, "", ""),
        ("btree-2", true, "missing_flush", "fill"),
        ("btree-3", true, "never_persisted", "split"),
        ("list-rs-3", true, "written_between_flush_and_fence", "list::push"),
        ("log-rs-2", false, "missing_fence", "log::append"),
        ("btree-rs-3", true, "never_persisted", "btree::split"),
    ];
    for (program, refused, kind, function) in planted {
        // Few images show a bug of a list or a log; to show none, or one of a tree, takes more.
        let bound = if refused && !program.starts_with("btree") { "60" } else { "200" };
        let output =
            crash(folder, &["check", "--bound", bound, "--json", "--", &format!("./{program}")]);
        let found = json(&output);
        let bad = found["bad_images"].as_array().unwrap().len();
        assert_eq!(bad > 0, refused, "{program}: {found}");
        assert_eq!(output.status.code(), Some(i32::from(program != "list-4")), "{program}");
        let misuses = found["misuses"].as_array().unwrap();
        let is_it = |m: &&Value| m["kind"] == kind;
        if !kind.is_empty() {
            let it = misuses.iter().find(is_it);
            let it = it.unwrap_or_else(|| panic!("{program}: no {kind} in {found}"));
            let place = it["place"].as_str().unwrap();
            let known = Command::new("addr2line").arg("--version").output().is_ok();
            assert!(!known || place.contains(function), "{program}: {place}");
        }
    }
}

#[test]
fn fortran_programs_crash_and_restart() {
    let Some(folder) = parts() else { return };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (module, object) = (here.join("../capi/fortran"), folder.join("terrace_crash.o"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-c", "-I"]).arg(here.join("../capi/include"));
    done(cc.arg(module.join("terrace_crash.c")).arg("-o").arg(&object)).unwrap();
    if Command::new("gfortran").arg("--version").output().is_err() {
        println!("skipped: gfortran not installed");
        return;
    }
    let mut gfortran = Command::new("gfortran");
    gfortran.args(["-O1", "-g", "-J"]).arg(folder).arg(module.join("terrace_crash.f90"));
    gfortran.arg(here.join("tests/programs/survive.f90")).arg(object);
    done(gfortran.arg("-o").arg(folder.join("survive-f90"))).unwrap();
    let successes = |caches: &str| {
        let arguments = ["run", "--at", "iteration", "--caches", caches, "--json", "--"];
        let found = json(&crash(folder, &[&arguments[..], &["./survive-f90"]].concat()));
        assert_eq!(found["total"]["restarts"], 10, "{found}");
        // Iterations end in the second of the two phases that it marks.
        let restarts = |phase: usize| found["phases"][phase]["restarts"].as_u64();
        assert_eq!((restarts(0), restarts(1), restarts(2)), (Some(0), Some(10), None), "{found}");
        found["total"]["successes"].as_u64().unwrap()
    };
    assert_eq!(successes("none"), 10);
    // Nothing leaves these caches but the first line of x, which the program flushes.
    assert_eq!(successes("unlimited"), 0);
}

#[test]
fn files_that_programs_map_by_themselves_are_checked() {
    let Some(folder) = parts() else { return };
    let check = |program: &str, file: &str| {
        let bound = ["check", "--bound", "60", "--mapped", file, "--json"];
        crash(folder, &[&bound[..], &["--", program, "log.pm"]].concat())
    };
    let right = check("./mapped-0", "log.pm");
    let found = json(&right);
    assert_eq!(right.status.code(), Some(0), "{found}");
    assert!(found["images"].as_u64().unwrap() > 12, "{found}");
    assert_eq!(found["misuses"].as_array().unwrap().len(), 0, "{found}");
    for (program, kind) in [("./mapped-1", "never_persisted"), ("./mapped-2", "")] {
        let wrong = check(program, "log.pm");
        let found = json(&wrong);
        assert_eq!(wrong.status.code(), Some(1), "{program}: {found}");
        assert!(!found["bad_images"].as_array().unwrap().is_empty(), "{program}: {found}");
        let misuses = found["misuses"].as_array().unwrap();
        assert!(kind.is_empty() || misuses.iter().any(|m| m["kind"] == kind), "{program}: {found}");
    }
    // Runs have copies: the file itself is neither made nor written.
    assert!(!folder.join("log.pm").exists());
    for (file, why) in [("/tmp/log.pm", "start there"), ("other.pm", "never maps")] {
        assert!(line(&check("./mapped-0", file)).contains(why), "{file}");
    }
}

#[test]
fn what_is_wrong_with_a_program_is_one_line() {
    let Some(folder) = parts() else { return };
    for (mode, expected) in [
        ("never", "never calls start_crash()"),
        ("inside", "never calls end_crash()"),
        ("overlap", "overlap"),
        ("unmapped", "its memory is not mapped at start_crash()"),
        ("freed", "is unmapped within the region"),
        ("fails", "ends with status 7 without a crash"),
    ] {
        let output = crash(folder, &["run", "--count", "4", "--", "./survive", mode]);
        assert_eq!(output.status.code(), Some(1), "{mode}: {}", text(&output.stdout));
        assert!(line(&output).contains(expected), "{mode}: {}", line(&output));
    }
    // A region of a few instructions is a region.
    let output = crash(folder, &["run", "--count", "4", "--", "./survive", "one"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = crash(folder, &["run", "--count", "4", "--", "./no-such-program"]);
    assert_eq!((output.status.code(), line(&output).is_empty()), (Some(1), false));
    let output = crash(folder, &["run", "--caches", "big", "--", "./survive"]);
    assert_eq!((output.status.code(), line(&output).contains("levels such as")), (Some(2), true));
    let small =
        ["run", "--count", "4", "--caches", "1K/2+4K/4/shared/inclusive", "--", "./survive"];
    let output = crash(folder, &small);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn restarts_are_judged_and_none_is_left_running() {
    let Some(folder) = parts() else { return };
    let outcome = |mode: &str, more: &[&str]| -> Value {
        let mut arguments = vec!["run", "--count", "4", "--jobs", "4", "--timeout", "2"];
        arguments.extend(["--json", "--"]);
        arguments.extend(["./survive", mode]);
        arguments.extend(more);
        json(&crash(folder, &arguments))
    };
    assert_eq!(outcome("sizes", &[])["outcomes"]["refused"], 4);
    assert_eq!(outcome("dies", &[])["outcomes"]["crashed"], 4);
    assert_eq!(outcome("hangs", &[])["outcomes"]["hung"], 4);
    // Children of a restart end with it, those with a session of their own, too.
    for mode in ["forks", "sessions"] {
        let found = outcome(mode, &[]);
        assert_eq!(found["total"]["restarts"], 4, "{found}");
        let listed = Path::new("/proc/thread-self/children").exists();
        assert!(running(folder, mode) == 0 || (mode == "sessions" && !listed), "{mode}");
    }
    let outside = folder.join("written-outside");
    outcome("writes", &[outside.to_str().unwrap()]);
    let has_landlock = std::fs::read_to_string("/sys/kernel/security/lsm")
        .is_ok_and(|list| list.contains("landlock"));
    assert!(!has_landlock || !outside.exists());
    // What the tool itself used is gone.
    let work = folder.join("work");
    std::fs::create_dir(&work).unwrap();
    let arguments = ["run", "--count", "4", "--work", "work", "-o", "kept", "--", "./survive"];
    let output = crash(folder, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
    assert_eq!(std::fs::read_to_string(folder.join("kept")).unwrap().lines().count(), 4);
}

#[test]
fn a_killed_tool_leaves_no_restart_running() {
    let Some(folder) = parts() else { return };
    let mut tool = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["crash", "run", "--timeout", "1000", "--work", "killed", "--"])
        .args(["./survive", "hangs", "killed-tool"])
        .current_dir(folder)
        .env("TERRACE_TRANSLATOR", folder.join(TRANSLATOR))
        .spawn()
        .unwrap();
    let wait_until = |what: &str, done: &dyn Fn(usize) -> bool| {
        for _ in 0..1200 {
            if done(running(folder, "killed-tool")) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{what}");
    };
    // A restart hangs, which no other run does: its folder is named so.
    let restarts = |_| {
        let in_folder = |p: &std::path::PathBuf| {
            let at = std::fs::read_link(p.join("cwd")).unwrap_or_default();
            at.starts_with(folder.join("killed")) && at.display().to_string().contains("restart-")
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten().map(|p| p.path());
        all.filter(in_folder).count() > 0
    };
    wait_until("no restart begins", &restarts);
    tool.kill().unwrap();
    tool.wait().unwrap();
    wait_until("restarts are left running", &|left| left == 0);
    std::fs::remove_dir_all(folder.join("killed")).unwrap();
}

#[test]
fn full_disks_are_said_and_results_are_kept() {
    let Some(folder) = parts() else { return };
    let arguments = ["run", "--count", "4", "-o", "/dev/full", "--json", "--", "./survive"];
    let output = crash(folder, &arguments);
    assert!(line(&output).contains("not all results are in /dev/full: No space left"));
    assert_eq!(json(&output)["total"]["restarts"], 4);
    // No space for the recording.
    let mount = |size| format!("mkdir -p full && mount -t tmpfs -o size={size} none full");
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_terrace")]);
        command.current_dir(folder).env("TERRACE_TRANSLATOR", folder.join(TRANSLATOR));
        command
    };
    if let Err(why) = done(&mut unshared(&mount("64k"))) {
        println!("skipped: no file system of its own: {why}");
        return;
    }
    // Nor, in the smaller one, for the recording's first bytes.
    for size in ["64k", "16k"] {
        let run = "exec \"$0\" crash run --count 4 --work full -- ./survive";
        let output = unshared(&format!("{} && {run}", mount(size))).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(line(&output).contains("No space left on device"), "{}", line(&output));
    }
}
