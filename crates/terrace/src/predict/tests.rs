use super::*;
use terrace_types::BaselineId;

#[test]
fn sweeps_are_ranges_or_lists() {
    let percents = |all: &[u32]| all.iter().map(|p| FastSize::Percent(*p)).collect::<Vec<_>>();
    let mib = |all: &[u64]| all.iter().map(|m| FastSize::Bytes(Bytes::mib(*m))).collect::<Vec<_>>();
    assert_eq!(parse_sweep("fast=10%..40%").unwrap(), percents(&[10, 20, 30, 40]));
    assert_eq!(parse_sweep("fast=25%..40%").unwrap(), percents(&[25, 35, 40]));
    assert_eq!(parse_sweep("fast=5%,100%").unwrap(), percents(&[5, 100]));
    assert_eq!(parse_sweep("fast=1MiB..8MiB").unwrap(), mib(&[1, 2, 4, 8]));
    assert_eq!(parse_sweep("fast=3MiB..8 MiB").unwrap(), mib(&[3, 6, 8]));
    assert_eq!(parse_sweep("fast=2MiB, 64MiB").unwrap(), mib(&[2, 64]));
    for bad in [
        "10%",
        "fast=",
        "fast=0%",
        "fast=101%",
        "fast=50%..10%",
        "slow=10%",
        "fast=1MiB..50%",
        "fast=8MiB..1MiB",
        "fast=0MiB",
    ] {
        assert!(parse_sweep(bad).is_err(), "{bad}");
    }
}

fn question(policies: &[&str], sweep: Vec<FastSize>) -> Question {
    Question {
        machine: terrace_machine::preset("lab-cxl").unwrap(),
        policies: policies.iter().map(|p| p.parse().unwrap()).collect(),
        input: "workload:skew,accesses=20k,size=4MiB,hot_size=1MiB".to_owned(),
        sweep,
        seed: Seed(1),
        tracker: TrackerKind::PageTable,
        journals: false,
        custom: None,
    }
}

#[test]
fn the_json_is_the_contracts() {
    let answer = predict(&question(&["first-touch", "terrace"], vec![])).unwrap();
    let json = serde_json::to_value(&answer).unwrap();
    for key in ["machine", "input", "accesses", "wall_seconds", "runs"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    for key in [
        "policy",
        "seconds",
        "fast_access_share",
        "promoted_pages",
        "demoted_pages",
        "migrated_bytes",
        "overhead_seconds",
        "energy_joules",
        "caches",
    ] {
        assert!(json["runs"][1].get(key).is_some(), "{key}");
    }
    assert_eq!(json["accesses"], 20_000);
    assert_eq!(json["runs"][0]["policy"], "first-touch");
    assert!(answer.text(80).lines().all(|l| l.chars().count() <= 80), "{}", answer.text(80));
}

#[test]
fn less_fast_memory_is_not_faster() {
    let answer =
        predict(&question(&["first-touch"], vec![FastSize::Percent(1), FastSize::Percent(100)]))
            .unwrap();
    let seconds: Vec<f64> = answer.runs.iter().map(|e| e.run.seconds).collect();
    assert!(seconds[0] > seconds[1], "{seconds:?}");
    let answer =
        predict(&question(&["first-touch"], parse_sweep("fast=1MiB,8MiB").unwrap())).unwrap();
    assert_eq!(
        answer.runs.iter().map(|e| e.fast_bytes).collect::<Vec<_>>(),
        [Some(1 << 20), Some(8 << 20)]
    );
    assert!(answer.runs[0].run.seconds > answer.runs[1].run.seconds);
    let more = predict(&question(&["first-touch"], vec![FastSize::Bytes(Bytes::gib(9))]));
    assert!(more.unwrap_err().to_string().contains("give less"));
    assert!(answer.runs[0].fast_bytes < answer.runs[1].fast_bytes);
    // What is asked for is the program's, whoever manages it.
    let answer =
        predict(&question(&["first-touch", "terrace"], parse_sweep("fast=1MiB").unwrap())).unwrap();
    let shares: Vec<f64> = answer.runs.iter().filter_map(|e| e.run.fast_access_share).collect();
    let [first, managed] = shares[..] else { panic!("{shares:?}") };
    assert!(first > 0.01 && managed > first * 0.95, "{shares:?}");
}

#[test]
fn all_of_the_fast_tier_is_the_machine_as_it_is() {
    let mut q = question(&["first-touch", "terrace"], vec![]);
    q.input = "workload:skew,accesses=2M,size=160MiB,hot_size=30MiB".to_owned();
    let seconds = |q: &Question| -> Vec<f64> {
        predict(q).unwrap().runs.iter().map(|e| e.run.seconds).collect()
    };
    let as_it_is = seconds(&q);
    for all in ["fast=100%".to_owned(), {
        let whole = SimSetup::new(&q.machine, "skew").unwrap();
        format!("fast={}KiB", whole.usable(0) >> 10)
    }] {
        q.sweep = parse_sweep(&all).unwrap();
        assert_eq!(seconds(&q), as_it_is, "{all}");
    }
}

#[test]
fn each_tracker_can_be_asked_for_and_a_run_under_the_engine_has_a_report() {
    assert!(parse_tracker("eyes").unwrap_err().to_string().contains("page-table, damon, pebs"));
    let set = parse_tracker("pebs,loads=64,buffer=8KiB").unwrap();
    let TrackerKind::Pebs(settings) = set else { panic!("{set:?}") };
    assert_eq!((settings.loads, settings.buffer), (Some(64), Bytes(8 << 10)));
    assert_eq!(settings.stores, PebsSettings::DEFAULT.stores);
    for bad in ["pebs,loads=0", "pebs,buffer=1KiB", "damon,loads=5", "pebs,x"] {
        assert!(parse_tracker(bad).unwrap_err().to_string().contains(bad), "{bad}");
    }
    for id in TrackerId::ALL {
        let (name, Some(tracker)) = (id.name(), id.simulated()) else { continue };
        assert_eq!(parse_tracker(name), Ok(tracker));
        let mut q = question(&["first-touch", "terrace"], vec![]);
        (q.tracker, q.journals) = (tracker, true);
        let reports = predict(&q).unwrap().reports().unwrap();
        let [(policy, html)] = &reports[..] else { panic!("one run under the engine") };
        assert!(policy == "terrace" && html.contains("<svg") && html.contains(name), "{name}");
    }
}

#[test]
fn energy_is_reported_as_far_as_known() {
    let mut q = question(&["first-touch"], vec![]);
    assert_eq!(predict(&q).unwrap().runs[0].run.energy, []);
    q.machine.nodes[0].energy.read_pj_per_byte = Some(100);
    let run = predict(&q).unwrap().runs.remove(0).run;
    assert!(
        run.energy_joules.is_none() && run.energy[0].read_joules.is_some_and(|j| j > 0.0),
        "{run:?}"
    );
    for node in &mut q.machine.nodes {
        let known = terrace_machine::Energy {
            read_pj_per_byte: Some(100),
            write_pj_per_byte: Some(200),
            static_mw: Some(5_000),
        };
        node.energy = known;
    }
    let answer = predict(&q).unwrap();
    let run = &answer.runs[0].run;
    let rest: f64 = run.energy.iter().filter_map(|e| e.static_joules).sum();
    assert!(
        (rest / (2.0 * 5.0 * run.seconds) - 1.0).abs() < 1e-6 && run.energy_joules > Some(rest),
        "{run:?}"
    );
    assert!(
        answer.text(80).contains("energy, first-touch")
            && answer.text(80).lines().all(|l| l.chars().count() <= 80)
    );
}

#[test]
fn a_store_behind_memory_can_be_asked_for_by_the_size_of_memory() {
    let answer =
        predict(&question(&["far:file", "far:compressed"], parse_sweep("fast=3MiB,8MiB").unwrap()));
    let answer = answer.unwrap();
    let misses: Vec<u64> = answer.runs.iter().map(|e| e.run.far.unwrap().misses).collect();
    assert!(misses[0] > 0 && misses[1] > 0 && misses[2..] == [0, 0], "{misses:?}");
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!(json["runs"][0]["far"]["dram_bytes"], 3 << 20);
    let text = answer.text(80);
    assert!(
        text.contains("far:compressed: ")
            && text.contains("pages read from the store")
            && text.lines().all(|l| l.chars().count() <= 80),
        "{text}"
    );
    let wrong = predict(&question(&["far:tape"], vec![])).unwrap_err().to_string();
    assert!(wrong.contains("file, compressed") && wrong.contains("[[far]]"), "{wrong}");
}

#[test]
fn where_everything_fits_that_is_said_first_with_a_range_in_which_it_does_not() {
    let mut q = question(&["first-touch", "terrace"], parse_sweep("fast=16MiB,32MiB").unwrap());
    let answer = predict(&q).unwrap();
    let said = "everything fits: 5 MiB touched, and even the least size swept has 16 MiB";
    let [note] = &answer.notes[..] else { panic!("{:?}", answer.notes) };
    assert!(note.starts_with(said) && note.ends_with("--sweep fast=1MiB..8MiB"), "{note}");
    let text = answer.text(80);
    assert!(text.starts_with("note: everything fits"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    // In the range that it proposes not all fits.
    q.sweep = parse_sweep("fast=1MiB..8MiB").unwrap();
    assert_eq!(predict(&q).unwrap().notes, Vec::<String>::new());
    q.sweep = Vec::new();
    assert!(predict(&q).unwrap().notes[0].contains("the fast tier has 121.4 MiB"));
    for touched in [1, 300 << 10, 5 << 20, (5 << 20) + 1, 3 << 40] {
        let sizes = parse_sweep(&scarce(touched)).unwrap();
        let (Some(FastSize::Bytes(least)), Some(FastSize::Bytes(most))) =
            (sizes.first(), sizes.last())
        else {
            panic!("{sizes:?}")
        };
        assert!(most.get() >= touched && (least.get() < touched || touched < 1 << 20));
    }
}

#[test]
fn a_workload_as_large_as_a_large_machine_needs_a_size_and_no_memory() {
    let mut q = question(&["first-touch"], vec![]);
    q.machine = terrace_machine::preset("grace-hopper").unwrap();
    q.input = "workload:skew,accesses=1M".to_owned();
    let whole = SimSetup::new(&q.machine, "skew,accesses=1M").unwrap();
    assert!(whole.host_bytes() > Bytes::gib(90), "{}", whole.host_bytes());
    let mut small = whole;
    small.host_memory = Some(Bytes::gib(8));
    let error = simulate(&small, &PolicyId::FirstTouch.into(), RunOptions::default()).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("8 GiB is there; give fast= or size="), "{said}");
    q.input = "workload:skew,accesses=20k,size=4MiB,hot_size=1MiB".to_owned();
    q.policies = vec![PolicyId::FirstTouch.into(), BaselineId::MemoryMode.into()];
    assert_eq!(predict(&q).unwrap().runs.len(), 2);
}

#[test]
fn what_is_missing_of_a_recording_is_said_before_the_figures() {
    let folder = std::env::temp_dir().join(format!("terrace-cut-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("cut.trace");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/formats/v1/trace.trace");
    let bytes = std::fs::read(fixture).unwrap();
    // Without its last block, and one byte of that besides.
    std::fs::write(&file, &bytes[..bytes.len() - 20]).unwrap();
    let mut q = question(&["first-touch", "terrace"], vec![]);
    q.input = file.display().to_string();
    let answer = predict(&q).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let about = |note: &&String| note.contains("the file ends within it");
    assert_eq!(answer.notes.iter().filter(about).count(), 1, "{:?}", answer.notes);
    assert!(answer.text(80).starts_with(&format!("note: {}", q.input)), "{}", answer.text(80));
    assert!(serde_json::to_value(&answer).unwrap()["notes"][0].is_string());
}

#[test]
fn what_cannot_be_asked_is_said() {
    let wrong = |q: Question| predict(&q).unwrap_err().to_string();
    let error = parse_contenders(&["no-such".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("bound:static"), "{error}");
    assert!(wrong(question(&["kernel:damos"], vec![])).contains("terrace lab compare"));
    let mut q = question(&["terrace"], vec![]);
    q.input = "workload:skew,size=9GiB".to_owned();
    assert!(wrong(q.clone()).contains("needs"));
    q.input = "recording.trc".to_owned();
    assert!(wrong(q).contains("workload:"));
}
