//! `terrace crash`: whole programs recorded, crashed, restarted and judged. Each test needs a C
//! compiler and a cargo that can fetch the translator's one dependency, and says `skipped` without.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder with the translator and the programs, or why there is none. Made once.
fn parts() -> Option<&'static Path> {
    static PARTS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = PARTS.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = root.join(format!("crash-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let done = |command: &mut Command| match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(text(&output.stderr)),
            Err(error) => Err(error.to_string()),
        };
        let mut build = Command::new(here.join("../../capture/translator/build.sh"));
        build
            .arg(folder.join("terrace-translate"))
            .env("TERRACE_TRANSLATOR_TARGET", root.join("translator"));
        done(&mut build).map_err(|e| format!("the translator cannot be built: {e}"))?;
        let examples = here.join("../../examples/crash");
        let programs: Vec<(PathBuf, String, &str)> = [
            (here.join("tests/programs/stores.c"), "stores", "-DPLAIN"),
            (here.join("tests/programs/survive.c"), "survive", "-DPLAIN"),
            (examples.join("cg.c"), "cg", "-DPLAIN"),
        ]
        .into_iter()
        .map(|(source, name, flag)| (source, name.to_owned(), flag))
        .chain(["list", "log", "btree"].into_iter().flat_map(|name| {
            let source = examples.join(format!("{name}.c"));
            ["-DBUG=0", "-DBUG=1", "-DBUG=2", "-DBUG=3", "-DBUG=4"]
                .map(|flag| (source.clone(), format!("{name}-{}", &flag[6..]), flag))
        }))
        .collect();
        for (source, program, flag) in programs {
            let mut compile = Command::new("cc");
            compile.args(["-std=gnu11", "-O1", "-g", "-pthread", flag, "-I"]);
            compile.arg(here.join("../capi/include")).arg(&source);
            done(compile.arg("-o").arg(folder.join(&program)).arg("-lm"))
                .map_err(|e| format!("{program} cannot be built: {e}"))?;
        }
        Ok(folder)
    });
    match made {
        Ok(folder) => Some(folder),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn crash(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("crash")
        .args(arguments)
        .current_dir(folder)
        .env("TERRACE_TRANSLATOR", folder.join("terrace-translate"))
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
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
    let arguments = ["run", "--count", "60", "--seed", "7", "--json", "--", "./cg", "S"];
    let found = json(&crash(folder, &arguments));
    assert_eq!(found["total"]["restarts"], 60);
    assert_eq!(found["reference_iterations"], 15);
    let share = |phase: usize| found["phases"][phase]["share"].as_f64().unwrap();
    // All of class S fits the caches: a restart begins at the first guess with fewer iterations.
    assert!(share(0) > share(2), "{}", found["phases"]);
    // The same seed gives the same crashes, and the same ends of them.
    let again = json(&crash(folder, &arguments));
    let facts = |all: &Value| -> Vec<(Value, Value, Value)> {
        let results = all["results"].as_array().unwrap();
        results
            .iter()
            .map(|r| (r["instruction"].clone(), r["outcome"].clone(), r["iterations_done"].clone()))
            .collect()
    };
    assert_eq!(facts(&found), facts(&again));
    let path = found["call_paths"][0]["call_path"].to_string();
    assert!(path.contains("main"), "{path}");
}

#[test]
fn advice_for_cg_is_to_flush_the_vector_that_iterations_hand_on() {
    let Some(folder) = parts() else { return };
    let arguments = ["advise", "--wanted", "0.9", "--count", "20", "--json", "--", "./cg", "S"];
    let found = json(&crash(folder, &arguments));
    assert!(found["trials"][0]["share"].as_f64().unwrap() < 0.9, "{found}");
    let advice = &found["advice"];
    assert!(advice["share"].as_f64().unwrap() >= 0.9, "{found}");
    let flushes = advice["flushes"].as_array().unwrap();
    assert_eq!((flushes.len(), &flushes[0]["object"]), (1, &Value::from("x")), "{found}");
}

#[test]
fn correct_structures_have_no_bad_image_and_planted_bugs_are_found() {
    let Some(folder) = parts() else { return };
    for name in ["list", "log", "btree"] {
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
    ];
    for (program, refused, kind, function) in planted {
        let output =
            crash(folder, &["check", "--bound", "200", "--json", "--", &format!("./{program}")]);
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
fn what_is_wrong_with_a_program_is_one_line() {
    let Some(folder) = parts() else { return };
    for (mode, expected) in [
        ("never", "never calls start_crash()"),
        ("inside", "never calls end_crash()"),
        ("overlap", "overlap"),
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
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn restarts_are_judged_and_none_is_left_running() {
    let Some(folder) = parts() else { return };
    let outcome = |mode: &str, more: &[&str]| -> Value {
        let mut arguments = vec!["run", "--count", "4", "--timeout", "2", "--json", "--"];
        arguments.extend(["./survive", mode]);
        arguments.extend(more);
        json(&crash(folder, &arguments))
    };
    assert_eq!(outcome("sizes", &[])["outcomes"]["refused"], 4);
    assert_eq!(outcome("dies", &[])["outcomes"]["crashed"], 4);
    assert_eq!(outcome("hangs", &[])["outcomes"]["hung"], 4);
    // Children of a restart end with it.
    let found = outcome("forks", &[]);
    assert_eq!(found["total"]["restarts"], 4);
    let left = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let names =
            processes.filter_map(|p| std::fs::read_to_string(p.path().join("cmdline")).ok());
        let ours = folder.join("survive").display().to_string();
        names.filter(|name| name.starts_with(&ours) && name.contains("forks")).count()
    };
    assert_eq!(left(), 0);
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
