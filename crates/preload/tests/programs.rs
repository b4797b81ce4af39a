//! Programs that know nothing of arenas, with the library and without: the same output.
#![allow(clippy::unwrap_used)]

mod under;

use std::path::Path;
use std::process::Command;
use under::{compile, folder, has, library, run, same};

#[test]
fn bash() {
    let script = r#"exec bash -c 'for i in $(seq 3000); do a[$i]="x$i$i"; s+=${a[$i]}; done; echo ${#s} ${a[77]};
        printf "%s\n" "${a[@]}" | sort -r | head -n 5; x=$(echo {1..2000}); echo ${#x}; (exit 3); echo $?; unset a; declare -A m;
        for i in {1..500}; do m[k$i]=$(($i*$i)); done; echo ${m[k400]}'"#;
    same("bash", &["bash"], script);
}

#[test]
fn git() {
    let script =
        "export HOME=$PWD GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
        git -c init.defaultBranch=m init -q r && cd r && git config user.email a@b && git config user.name n
        for i in 1 2 3 4 5 6; do seq $i $((i * 700)) >f$i; git add . && git commit -qm c$i; done
        git gc -q && git fsck --full && git log --stat && git diff HEAD~3 | sha256sum && git archive HEAD | sha256sum";
    same("git", &["git"], script);
}

#[test]
fn sqlite3() {
    let script =
        "sqlite3 d.db 'create table t(a integer primary key, b text); with recursive n(i) as (select 1 union
        all select i+1 from n where i<20000) insert into t select i, printf(\"%d-%d\", i, i*i) from n; create index x on
        t(b); select count(*), sum(length(b)) from t; select * from t order by b desc limit 5; delete from t where a%3=0;
        vacuum; pragma integrity_check; select group_concat(b) from (select b from t limit 300);'";
    same("sqlite3", &["sqlite3"], script);
}

#[test]
fn gcc() {
    let script = r#"printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint cmp(const void*a,const void*b){
        return *(int*)a-*(int*)b;}\nint main(){int v[100];for(int i=0;i<100;i++)v[i]=i*7919%%101;qsort(v,100,4,cmp);for(int
        i=0;i<100;i++)printf("%%d ",v[i]);}\n' >p.c && gcc -O2 -c p.c -o p.o && sha256sum p.o && gcc -O2 p.c -o p && ./p"#;
    same("gcc", &["gcc"], script);
}

/// Python's own tests, all of its memory from malloc; times are left out of what is compared.
#[test]
fn python_tests_its_memory() {
    if !run(&folder("has-python"), "python3 -c 'import test.test_bytes'", &[]).status.success() {
        return println!("skipped: python3 with its own tests is not installed");
    }
    let script = "PYTHONMALLOC=malloc python3 -m test test_memoryview test_bytes 2>&1 |
        grep -v -e 'passed in' -e duration -e Total -e seed -e '^[0-9:]* ' -e Result; PYTHONMALLOC=malloc python3 -c 'import threading, gc
d = {}
def work(n): d[n] = sum(len(str(i) * (i % 50)) for i in range(20000))
t = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[x.start() for x in t]; [x.join() for x in t]
print(sorted(d.items()), gc.collect() >= 0, len(bytearray(50_000_000)))'";
    same("python", &["python3"], script);
}

#[test]
fn what_malloc_promises_is_kept() {
    let folder = folder("semantics");
    if !compile(&folder, "semantics.c", "same", &["-w"])
        || !compile(&folder, "semantics.c", "handlers", &["-w", "-DIN_HANDLERS"])
    {
        return;
    }
    let plain = run(&folder, "./same", &[]);
    assert_eq!(String::from_utf8_lossy(&plain.stdout), "all kept\nbye\n");
    for program in ["./same", "./handlers"] {
        let ours = run(&folder, program, &[("LD_PRELOAD", library())]);
        assert_eq!(String::from_utf8_lossy(&ours.stdout), "all kept\nbye\n", "{program} {ours:?}");
        assert!(ours.status.success());
    }
}

/// What the report says each arena held at most.
fn peaks(report: &Path, process: Option<&str>) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(report).unwrap();
    let lines = text.lines().filter(|l| process.is_none_or(|p| l.starts_with(p)));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[1].to_owned(), words[3].parse().unwrap())
        })
        .collect()
}

#[test]
fn rules_send_allocations_to_their_arenas() {
    let folder = folder("routes");
    if !compile(&folder, "routes.c", "routes", &[]) {
        return;
    }
    let symbols = Command::new("nm").arg(folder.join("routes")).output().unwrap();
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let site =
        symbols.lines().find(|l| l.ends_with(" after_site")).and_then(|l| l.split(' ').next());
    let mut plan =
        "arena big\narena solver\narena site\nsize 1M.. big\nthread solver* solver\n".to_owned();
    match site {
        Some(address) => {
            plan += &format!("site routes+0x{} site\n", address.trim_start_matches('0'))
        }
        None => println!("skipped: call sites are tried on x86-64 only"),
    }
    std::fs::write(folder.join("plan"), plan).unwrap();
    let (plan, report) = (folder.join("plan"), folder.join("report"));
    let environment = [
        ("LD_PRELOAD", library()),
        ("TERRACE_ALLOC", plan.as_path()),
        ("TERRACE_ALLOC_REPORT", report.as_path()),
    ];
    let ran = run(&folder, "exec ./routes", &environment);
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
    let peaks = peaks(&report, None);
    let of = |name: &str| peaks.iter().find(|(n, _)| n == name).unwrap().1;
    assert!((20 << 20..21 << 20).contains(&of("big")), "{peaks:?}");
    assert!((340 * 3000..700 * 3000).contains(&of("solver")), "{peaks:?}");
    if site.is_some() {
        assert!((5_000_000..6_000_000).contains(&of("site")), "{peaks:?}");
    }
}

#[test]
fn a_wrong_plan_is_reported_and_ignored() {
    let folder = folder("wrong");
    let plan = folder.join("plan");
    for (text, why) in [
        ("arena a only 999\nsize 0.. a\n", "node 999"),
        ("nonsense\n", "line 1"),
        ("arena a\nsize 9..1 a\n", "line 2"),
    ] {
        std::fs::write(&plan, text).unwrap();
        let ran = run(
            &folder,
            "exec /bin/echo fine",
            &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", &plan)],
        );
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "fine\n");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(said.contains(why) && said.contains("runs without it"), "{said}");
    }
    let ran = run(
        &folder,
        "exec /bin/echo fine",
        &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", Path::new("/nowhere"))],
    );
    assert!(ran.status.success() && !ran.stderr.is_empty());
}

/// `setlocale` allocates while it holds a lock that the C library's own words for errors take.
#[test]
fn a_plan_that_is_not_there_keeps_no_program_from_running() {
    let folder = folder("missing");
    for script in ["exec bash -c true", "exec git --version", "exec python3 -c pass"] {
        let name = script.split(' ').nth(1).unwrap();
        if !has(name) || !has("timeout") {
            println!("skipped: {name} is not installed");
            continue;
        }
        let script = script.replacen("exec", "exec timeout 30", 1);
        let plain = run(&folder, &script, &[]);
        let plan = Path::new("/nowhere/plan");
        let ours = run(&folder, &script, &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", plan)]);
        let said = String::from_utf8_lossy(&ours.stderr).into_owned();
        assert_eq!((plain.status, plain.stdout), (ours.status, ours.stdout), "{script}: {said}");
        let line = "terrace: plan /nowhere/plan: entity not found (errno 2); \
                    the program runs without it";
        assert!(!said.is_empty() && said.lines().all(|l| l == line), "{said}");
    }
}

/// Where addresses are limited, what finds no free space in arenas comes from glibc.
#[test]
fn a_limit_on_addresses_leaves_space_for_the_program() {
    if !has("python3") {
        return println!("skipped: python3 is not installed");
    }
    let folder = folder("limit");
    for (limit, mib) in [(1_000_000, 600), (200_000, 80)] {
        let script = format!(
            "ulimit -v {limit}; exec python3 -c 'b = bytearray({mib} << 20); b[-1] = 7; \
             print(len(b), b[-1], len([str(n) for n in range(200000)]))'"
        );
        let plain = run(&folder, &script, &[]);
        let ours = run(&folder, &script, &[("LD_PRELOAD", library())]);
        assert!(plain.status.success(), "{plain:?}");
        let texts = [plain.stdout, plain.stderr, ours.stdout, ours.stderr];
        let [out, err, our_out, our_err] = texts.map(|t| String::from_utf8_lossy(&t).into_owned());
        assert_eq!((out, err), (our_out, our_err), "{limit}");
    }
}

/// What the allocator says of itself: 50 MiB and 1,000 blocks of 1,000 bytes.
#[test]
fn statistics_of_the_allocator_are_reported() {
    let folder = folder("figures");
    if !compile(&folder, "figures.c", "figures", &["-O0", "-fno-builtin"]) {
        return;
    }
    let plan = folder.join("plan");
    std::fs::write(&plan, "arena a\ndefault a\n").unwrap();
    let preload = ("LD_PRELOAD", library());
    for environment in [vec![], vec![preload], vec![preload, ("TERRACE_ALLOC", &plan)]] {
        let ran = run(&folder, "exec ./figures", &environment);
        let (out, err) =
            (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert_eq!((out.as_ref(), ran.status.code()), ("told\n", Some(0)), "{environment:?}");
        // The last line of `malloc_stats`.
        let last = err.lines().rfind(|l| l.starts_with("in use bytes")).unwrap_or_default();
        let used: u64 = last.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        assert!((50 << 20..56 << 20).contains(&used), "{environment:?}: {err}");
    }
}

#[test]
fn what_is_freed_twice_ends_with_a_word() {
    let folder = folder("twice");
    if !has("gcc") {
        return println!("skipped: gcc is not installed");
    }
    let program = "#include <stdlib.h>\nint main(int \
            n,char**v){char*p=malloc(n>1?500000:50);free(p+(n>2?8:0));free(p);}";
    std::fs::write(folder.join("twice.c"), program).unwrap();
    let built = run(&folder, "gcc -w -O0 twice.c -o twice", &[]);
    assert!(built.status.success());
    for (call, why) in
        [("./twice", "freed twice"), ("./twice x", "freed twice"), ("./twice x y", "into a block")]
    {
        let ran = run(&folder, &format!("exec {call}"), &[("LD_PRELOAD", library())]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(
            !ran.status.success() && said.starts_with("terrace: free(0x") && said.contains(why),
            "{said}"
        );
    }
}
