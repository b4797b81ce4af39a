//! `list`, and the hidden `completions` and `man`: what there is to name, for people and shells.

use crate::args::{Cli, ListArgs, ListTopic};
use crate::output::{print, print_json, width, CommandFailure, Ending};
use clap::{Command, CommandFactory, ValueEnum};
use terrace_terrace::names::{self, Named};

/// One headed part of an answer; its key in JSON.
type Section = (&'static str, Vec<Named>);

impl ListTopic {
    fn sections(self) -> Vec<Section> {
        match self {
            Self::Policies => vec![("policies", names::policies())],
            Self::Workloads => vec![
                ("workloads", names::workloads()),
                ("parameters", names::workload_parameters()),
            ],
            Self::Machines => vec![("machines", names::machines())],
            Self::Trackers => vec![("trackers", names::trackers())],
            Self::Commands => vec![("commands", commands())],
        }
    }
}

/// `terrace list`.
pub fn list(args: &ListArgs) -> Ending {
    let sections = match args.topic {
        Some(topic) => topic.sections(),
        None => vec![("topics", topics())],
    };
    if args.json {
        let all = sections.into_iter().map(|(key, named)| (key.to_owned(), named));
        return print_json(&all.collect::<std::collections::BTreeMap<_, _>>());
    }
    if args.names {
        // Parameters are no names of their own; they follow a workload's.
        let first = sections.into_iter().next().map(|(_, named)| named).unwrap_or_default();
        return print(&first.iter().map(|n| format!("{}\n", n.name)).collect::<String>());
    }
    let several = sections.len() > 1;
    let mut text = String::new();
    for (number, (key, named)) in sections.iter().enumerate() {
        if several {
            text.push_str(&format!("{}{key}:\n", if number > 0 { "\n" } else { "" }));
        }
        text.push_str(&table(named, width()));
    }
    print(&text)
}

fn topics() -> Vec<Named> {
    let values = ListTopic::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    values.map(|value| named(value.get_name(), value.get_help())).collect()
}

fn named(name: &str, about: Option<&clap::builder::StyledStr>) -> Named {
    let summary = about.map(ToString::to_string).unwrap_or_default();
    Named { name: name.to_owned(), summary, commands: Vec::new() }
}

/// All commands that help shows, those below another by both words.
fn commands() -> Vec<Named> {
    fn add(command: &Command, before: &str, all: &mut Vec<Named>) {
        for sub in command.get_subcommands() {
            if sub.is_hide_set() || sub.get_name() == "help" {
                continue;
            }
            let name = format!("{before}{}", sub.get_name());
            all.push(named(&name, sub.get_about()));
            add(sub, &format!("{name} "), all);
        }
    }
    let mut all = Vec::new();
    add(&Cli::command(), "", &mut all);
    all
}

/// Names to the left, what each is to the right, broken to `columns`.
fn table(named: &[Named], columns: usize) -> String {
    let longest = named.iter().map(|n| n.name.len()).max().unwrap_or(0) + 2;
    let mut text = String::new();
    for entry in named {
        let mut summary = entry.summary.clone();
        if !entry.commands.is_empty() {
            summary.push_str(&format!(" [{}]", entry.commands.join(", ")));
        }
        let mut line = format!("{:<longest$}", entry.name);
        let mut words = 0;
        for word in summary.split(' ') {
            if words > 0 && line.chars().count() + 1 + word.chars().count() > columns {
                text.push_str(line.trim_end());
                text.push('\n');
                line = " ".repeat(longest);
                words = 0;
            }
            if words > 0 {
                line.push(' ');
            }
            line.push_str(word);
            words += 1;
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `terrace completions SHELL`.
pub fn completions(shell: clap_complete::Shell) -> Ending {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "terrace", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// What a manual page says of exit statuses; README says the same.
const STATUSES: [(&str, &str); 4] = [
    ("0", "Done."),
    ("1", "Failed; one line on standard error says why."),
    ("2", "Wrong usage."),
    ("3", "The machine lacks what was asked; the line says what would do instead."),
];
/// Of commands that run a program.
const RUN_STATUSES: [(&str, &str); 3] = [
    ("125", "Terrace itself failed before the program started."),
    ("126", "The program cannot be executed."),
    ("127", "There is no such program. Otherwise the status is the program's own."),
];

/// `terrace man [COMMAND...]`.
pub fn man(path: &[String]) -> Ending {
    let mut root = Cli::command();
    root.build();
    let mut command = &root;
    for name in path {
        command = command.find_subcommand(name).ok_or_else(|| {
            CommandFailure::usage(format!("man {}: no such command", path.join(" ")))
        })?;
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut text)
        .map_err(|e| CommandFailure::failed(format!("cannot make the manual page: {e}")))?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    text.push_str(".SH \"EXIT STATUS\"\n");
    let runs = ["run", "record", "degrade"].contains(&command.get_name()) && path.len() == 1;
    let own = STATUSES.iter().filter(|(status, _)| command.get_name() != "run" || *status == "0");
    for (status, meaning) in own.chain(RUN_STATUSES.iter().filter(|_| runs)) {
        text.push_str(&format!(".TP\n{status}\n{meaning}\n"));
    }
    text.push_str(".SH \"SEE ALSO\"\n");
    let pages = ["terrace(1)", "terrace-machine(5)", "terrace-plan(5)", "terrace-journal(5)"];
    text.push_str(&format!("{}\n", pages.join(", ")));
    print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_keep_to_the_columns_and_lose_no_word() {
        let long = Named {
            name: "name".into(),
            summary: "word ".repeat(40).trim().to_owned(),
            commands: vec!["run"],
        };
        for columns in [20, 40, 80, 200] {
            let text = table(std::slice::from_ref(&long), columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert_eq!(text.matches("word").count(), 40);
            assert!(text.contains("[run]"));
        }
    }

    #[test]
    fn commands_of_two_words_are_listed() {
        let all: Vec<String> = commands().into_iter().map(|c| c.name).collect();
        for name in ["run", "lab", "lab compare", "trace import", "list"] {
            assert!(all.iter().any(|known| known == name), "{name}: {all:?}");
        }
        assert!(!all.iter().any(|name| name == "man" || name.contains("help")), "{all:?}");
    }
}
