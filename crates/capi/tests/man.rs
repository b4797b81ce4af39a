//! `docs/man` follows `include/terrace.h`, which follows the declarations in `src/`.

use std::fmt::Write as _;
use std::path::Path;

/// Pages: name, summary, prefixes of its functions (longest first over all pages), prefixes of its
/// constants.
const PAGES: &[(&str, &str, &[&str], &[&str])] = &[
    (
        "terrace",
        "memory by attributes and in arenas, on machines with more than one kind of memory",
        &["terrace_strerror", "terrace_last_error", "terrace_version"],
        &["TERRACE_OK", "TERRACE_E_"],
    ),
    (
        "terrace_attr",
        "attributes of an allocation",
        &["terrace_attr_"],
        &[
            "TERRACE_CLASS_",
            "TERRACE_INDEX_",
            "TERRACE_SPLIT_",
            "TERRACE_BIND_",
            "TERRACE_MISMATCH_",
            "TERRACE_PAGES_",
            "TERRACE_LIFETIME_",
        ],
    ),
    (
        "terrace_memory",
        "allocate by attributes, free, commit",
        &["terrace_memory_"],
        &["TERRACE_COMMIT_"],
    ),
    ("terrace_report", "the outcome of a commit", &["terrace_report_"], &[]),
    (
        "terrace_arena",
        "heaps on chosen nodes that move as a whole",
        &["terrace_arena_", "terrace_move_"],
        &["TERRACE_DEVICES_", "TERRACE_ARENA_", "TERRACE_MOVE_"],
    ),
    (
        "terrace_shared",
        "arenas shared by several processes",
        &["terrace_shared_"],
        &["TERRACE_NO_OFFSET"],
    ),
    (
        "terrace_stage",
        "process data in slow memory block by block through fast memory",
        &["terrace_stage_", "terrace_block"],
        &["TERRACE_STAGE_"],
    ),
    (
        "terrace_far",
        "a range larger than its DRAM, with the rest compressed or on a disk",
        &["terrace_far_"],
        &["TERRACE_FAR_"],
    ),
];

/// One declaration of the header, with its comment.
struct Item {
    name: String,
    comment: String,
    text: String,
}

/// Declarations of functions, structures and constants, in the header's order.
fn items(header: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let (mut comment, mut lines) = (String::new(), header.lines().peekable());
    while let Some(line) = lines.next() {
        if line == "/*" {
            comment = lines.by_ref().take_while(|l| *l != " */").collect::<Vec<_>>().join("\n");
            continue;
        }
        let mut text = line.to_owned();
        if line.starts_with("typedef struct") && line.ends_with('{') {
            for more in lines.by_ref() {
                text += &format!("\n{more}");
                if more.starts_with('}') {
                    break;
                }
            }
        } else if line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains('(') {
            while !text.ends_with(';') {
                text += &format!("\n{}", lines.next().expect("a declaration that ends"));
            }
        } else if !line.starts_with("#define TERRACE_") && !line.starts_with("typedef struct") {
            continue;
        }
        let name = if line.starts_with("#define") {
            line.split(' ').nth(1)
        } else if let Some((_, pointed)) =
            text.split_once("(*").filter(|_| text.starts_with("typedef"))
        {
            pointed.split(')').next()
        } else if text.starts_with("typedef") {
            text.trim_end_matches(';').split([' ', '\n']).next_back()
        } else {
            line.split('(').next().and_then(|l| l.split([' ', '*']).next_back())
        };
        let name = name.unwrap_or_default().to_owned();
        items.push(Item { name, comment: std::mem::take(&mut comment), text });
    }
    items.retain(|i| i.name != "TERRACE_H");
    items
}

/// Text as troff wants it.
fn plain(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    let lines = escaped.lines().map(str::trim).map(|l| match l.starts_with(['.', '\'']) {
        true => format!("\\&{l}"),
        false => l.to_owned(),
    });
    // The heading of Rust's safety sections means nothing to readers of C.
    let kept: Vec<String> = lines.map(|l| l.replace("# Safety", "The caller promises:")).collect();
    kept.join("\n").trim().to_owned()
}

fn code(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn page(
    all: &[Item],
    (name, about, functions, constants): (&str, &str, &[&str], &[&str]),
) -> String {
    let begins = |item: &Item, with: &[&str]| with.iter().any(|w| item.name.starts_with(w));
    let is_function =
        |i: &&Item| i.text.contains('(') && !i.text.starts_with("typedef") && begins(i, functions);
    let names: Vec<&str> = all.iter().filter(is_function).map(|i| i.name.as_str()).collect();
    let mut out = format!(
        ".\\\" Made from include/terrace.h by cargo test -p terrace-capi; do \
        not edit.\n.TH {} 3 \"\" \"Terrace {}\"\n.nh\n.ad l\n.SH NAME\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    let mut add = |text: String| out.push_str(&text);
    let first = if names.contains(&name) { Vec::new() } else { vec![name] };
    add(format!(
        "{} \\- {about}\n.SH SYNOPSIS\n.nf\n.B #include <terrace.h>\n.PP\n",
        [first, names].concat().join(", ")
    ));
    for item in all.iter().filter(is_function) {
        for line in item.text.lines() {
            add(format!(".B \"{}\"\n", code(line).replace('"', "")));
        }
    }
    add(".fi\nLink with \\fI\\-lterrace\\fP.\n.SH DESCRIPTION\nHandles are opaque and are the \
        first argument. Functions that can fail return 0 or a negative\n\
         TERRACE_E_*; \\fBterrace_last_error\\fP(3) returns the thread's last error in \
         full.\n"
        .to_owned());
    for item in all.iter().filter(is_function) {
        add(format!(".TP\n.BR {} ()\n{}\n", item.name, plain(&item.comment)));
    }
    let structure = |i: &&Item| {
        i.text.starts_with("typedef")
            && (i.name == name
                || functions.iter().any(|f| {
                    let stem = f.trim_end_matches('_');
                    i.name == stem
                        || (stem == "terrace_report" && i.name == "terrace_row")
                        || (stem == "terrace_memory" && i.name == "terrace_gpu")
                        || (stem == "terrace_move" && i.name == "terrace_moved")
                        || (stem == "terrace_stage" && i.name == "terrace_staged")
                        || i.name.starts_with(&format!("{stem}_"))
                }))
    };
    let types: Vec<&Item> = all.iter().filter(structure).collect();
    if !types.is_empty() {
        add(".SH TYPES\n".to_owned());
    }
    for item in types {
        let opaque = if item.text.contains(['{', '(']) { "" } else { " (opaque)" };
        add(format!(".TP\n.B {}{opaque}\n{}\n", item.name, plain(&item.comment)));
        if item.text.contains(['{', '(']) {
            add(format!(".RS\n.nf\n{}\n.fi\n.RE\n", code(&item.text).replace("\n  ", "\n\\&  ")));
        }
    }
    let stated: Vec<&Item> =
        all.iter().filter(|i| i.text.starts_with("#define") && begins(i, constants)).collect();
    if !stated.is_empty() {
        add(".SH CONSTANTS\n".to_owned());
    }
    for item in stated {
        let value = item.text.split(' ').nth(2).unwrap_or_default();
        add(format!(".TP\n.BR {} \" ({})\"\n{}\n", item.name, code(value), plain(&item.comment)));
    }
    let others: Vec<String> =
        PAGES.iter().filter(|p| p.0 != name).map(|p| format!(".BR {} (3)", p.0)).collect();
    let _infallible = writeln!(out, ".SH SEE ALSO\n{}", others.join(",\n"));
    out
}

#[test]
fn the_committed_pages_are_current_and_leave_nothing_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/terrace.h")).expect("the header");
    let all = items(&header);
    for item in &all {
        let of = |p: &(&str, &str, &[&str], &[&str])| {
            p.2.iter().chain(p.3).any(|w| item.name.starts_with(w.trim_end_matches('_')))
                || item.name == "terrace_row"
                || item.name == "terrace_gpu"
                || item.name == "terrace_moved"
                || item.name == "terrace_staged"
        };
        assert!(PAGES.iter().any(of), "{} is on no page; give it one in tests/man.rs", item.name);
        assert!(!item.comment.trim().is_empty(), "{} has no comment", item.name);
    }
    let folder = root.join("../../docs/man");
    for described in PAGES {
        let made = page(&all, *described);
        let path = folder.join(format!("{}.3", described.0));
        if std::env::var_os("TERRACE_BLESS").is_some() {
            std::fs::create_dir_all(&folder).expect("docs/man");
            std::fs::write(&path, &made).expect("a page");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "docs/man/{}.3 is not what terrace.h says; look at the change and accept it with\n  \
             TERRACE_BLESS=1 cargo test -p terrace-capi --test man",
            described.0
        );
    }
}
