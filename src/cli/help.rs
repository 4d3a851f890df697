//! Help in its forms: `--help` and `--version`, completions for shells, manual pages; all made from the same definitions.
//!
//! What a command's help says last (`after_long_help`) is sections: a title that ends with a colon, and lines that are indented by
//! two spaces. They stand as they are written, in --help and in manual pages, and so are at most 75 columns wide. Every command
//! has a section Examples. Each line of it that is not a comment (`#`) is run by tests.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{Failure, Outcome, markdown, output};
use crate::format::{array, chunk, header};
use crate::store::in_words;
use crate::store::local::{self, system};

/// Print a script that completes b2fuse's commands and options in a shell
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  # bash: into ~/.local/share/bash-completion/completions
  b2fuse completions bash >b2fuse
  b2fuse completions fish >~/.config/fish/completions/b2fuse.fish
  # zsh: into a directory of $fpath
  b2fuse completions zsh >~/.zfunc/_b2fuse")]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages to a directory, or print one
///
/// The pages are b2fuse(1), one for each command, such as b2fuse-mount(1), and b2fuse-views(7): what a mount promises. man(1) finds pages
/// in the directories below. If DIR is named man1, pages of section 7 go to man7 beside it.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse man ~/.local/share/man/man1
  # For all users
  sudo b2fuse man /usr/local/share/man/man1
  # One page; to read it at once: b2fuse man --page views | man -l -
  b2fuse man --page views >b2fuse-views.7")]
pub(super) struct Manual {
    /// The directory to write to; created if it does not exist
    #[arg(required_unless_present = "page")]
    dir: Option<PathBuf>,
    /// Print the source of one page: views, b2fuse, or a command
    #[arg(long, value_name = "NAME", conflicts_with = "dir")]
    page: Option<String>,
}

/// The contract of the views, which rustdoc shows with `crate::view`.
const VIEWS: &str = include_str!("../view/views.md");

/// Columns that a line of these sections has at most. man(1) has five more before it, and a terminal has 80.
#[cfg(test)]
const WIDTH: usize = 75;

/// What the foot of a page names.
const SOURCE: &str = concat!("b2fuse ", env!("CARGO_PKG_VERSION"));

/// What `--version` says behind the name.
pub(super) fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        format!(
            "{}\nframes:  format versions up to {}\nchunks:  format versions up to {}, and those of Blosc1\n\
             arrays:  b2nd and Caterva metalayers of version {}",
            env!("CARGO_PKG_VERSION"),
            header::MAX_VERSION,
            chunk::MAX_VERSION,
            array::VERSION
        )
    });
    &TEXT
}

pub(super) fn completions(args: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Args::command(), "b2fuse", &mut script);
    let script = without_hidden(&String::from_utf8_lossy(&script));
    output::written(io::stdout().write_all(script.as_bytes())).into()
}

/// A script without options that help does not show, which clap offers all the same.
fn without_hidden(script: &str) -> String {
    let program = super::Args::command();
    let hidden: Vec<_> =
        program.get_subcommands().flat_map(clap::Command::get_arguments).filter(|arg| arg.is_hide_set()).collect();
    let hidden: Vec<_> = hidden.into_iter().filter_map(clap::Arg::get_long).collect();
    let mut kept = String::with_capacity(script.len());
    for line in script.lines() {
        // bash has all options in one line; for the other shells, each has a line of its own.
        let is_list = line.trim_start().starts_with("opts=");
        let has = |name: &&str| line.contains(&format!("--{name}")) || line.contains(&format!("-l {name} "));
        if is_list {
            let line = hidden.iter().fold(line.to_owned(), |line, name| line.replace(&format!(" --{name}"), ""));
            kept.push_str(&line);
        } else if hidden.iter().any(has) {
            continue;
        } else {
            kept.push_str(line);
        }
        kept.push('\n');
    }
    kept
}

pub(super) fn manual(args: &Manual) -> Outcome {
    match (&args.page, &args.dir) {
        (Some(name), _) => print_page(name),
        (None, Some(dir)) => write_pages(dir).into(),
        (None, None) => Outcome::Done,
    }
}

fn print_page(name: &str) -> Outcome {
    let wanted = if name.starts_with("b2fuse") { name.to_owned() } else { format!("b2fuse-{name}") };
    let page = pages().into_iter().find(|page| page.name == wanted);
    page.map_or_else(
        || Outcome::Usage(format!("no page '{name}'; expected views, b2fuse, or a command")),
        |page| output::written(io::stdout().write_all(&page.source)).into(),
    )
}

fn write_pages(dir: &Path) -> Result<(), Failure> {
    if matches!(local::stat(dir), Ok(Some(stat)) if !stat.is_dir()) {
        return Err(Failure::new(dir, "is not a directory; expected one to write to"));
    }
    for Page { name, section, source } in pages() {
        let is_man1 = dir.file_name() == Some(OsStr::new("man1"));
        let dir = if is_man1 { dir.with_file_name(format!("man{section}")) } else { dir.to_owned() };
        let name = format!("{name}.{section}");
        system::write_output(&dir, OsStr::new(&name), &source)
            .map_err(|error| Failure::new(&dir.join(&name), format_args!("cannot be written: {}", in_words(&error))))?;
    }
    Ok(())
}

struct Page {
    name: String,
    section: u8,
    source: Vec<u8>,
}

fn pages() -> Vec<Page> {
    let mut program = super::Args::command();
    program.build();
    let commands: Vec<_> = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    std::iter::once(program).chain(commands).map(page).chain([views()]).collect()
}

fn views() -> Page {
    let mut roff = Roff::new();
    roff.control("TH", ["b2fuse-views", "7", "", SOURCE, "b2fuse"]);
    roff.control("SH", ["NAME"]).text([roman("b2fuse-views - what a mount of a Blosc2 frame promises")]);
    roff.extend([markdown::to_roff(VIEWS)]);
    roff.control("SH", ["SEE ALSO"]).text([roman("b2fuse(1), b2fuse-mount(1)")]);
    Page { name: "b2fuse-views".into(), section: 7, source: roff.render().into_bytes() }
}

fn page(command: clap::Command) -> Page {
    let name = command.get_display_name().unwrap_or("b2fuse").to_owned();
    let whole = command.has_subcommands();
    let closing = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut end = Roff::new();
    for (title, lines) in sections(&closing) {
        end.control("SH", [title.to_uppercase().as_str()]);
        verbatim(&mut end, lines);
    }
    if whole {
        end.control("SH", ["VERSION"]);
        verbatim(&mut end, version().lines());
    }
    end.control("SH", ["SEE ALSO"]);
    end.text([roman(if whole { "b2fuse-mount(1), b2fuse-views(7)" } else { "b2fuse(1), b2fuse-views(7)" })]);
    let usage = synopsis(&command);
    let rest = command.after_long_help(None::<&str>).version(None::<&str>).long_version(None::<&str>).override_usage(usage);
    let rest = rest.mut_args(|arg| if arg.is_positional() { arg.help_heading("Arguments") } else { arg });
    let mut out = Vec::new();
    // Into memory, where nothing fails.
    let _ = Man::new(rest).source(SOURCE).manual("b2fuse").render(&mut out);
    out.extend(end.to_roff().bytes());
    Page { name, section: 1, source: out }
}

/// How a command is used, with all options.
fn synopsis(command: &clap::Command) -> String {
    let mut words = vec![command.get_bin_name().unwrap_or("b2fuse").to_owned()];
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let value = |arg: &clap::Arg| arg.get_value_names().unwrap_or_default().join(" ");
    for option in shown().filter(|arg| !arg.is_positional()) {
        let name = match (option.get_short(), option.get_long()) {
            (Some(short), _) => format!("-{short}"),
            (None, long) => format!("--{}", long.unwrap_or_default()),
        };
        let value = if option.get_action().takes_values() { format!(" {}", value(option)) } else { String::new() };
        words.push(format!("[{name}{value}]"));
    }
    for argument in shown().filter(|arg| arg.is_positional()) {
        let many = if argument.get_num_args().is_some_and(|count| count.max_values() > 1) { "..." } else { "" };
        let name = value(argument);
        words.push(if argument.is_required_set() { format!("{name}{many}") } else { format!("[{name}{many}]") });
    }
    if command.has_subcommands() {
        words.push("COMMAND ...".into());
    }
    words.join(" ")
}

/// Lines as they stand.
fn verbatim<'a>(roff: &mut Roff, lines: impl IntoIterator<Item = &'a str>) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

/// The sections that a command's help ends with: titles, and lines without their indent.
fn sections(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("  "), sections.last_mut()) {
            (Some(line), Some((_, lines))) => lines.push(line),
            _ => sections.push((line.trim_end_matches(':'), Vec::new())),
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Each command, and what it gives as examples.
    fn examples() -> Vec<(String, Vec<String>)> {
        let program = super::super::Args::command();
        let of = |command: &clap::Command| {
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let lines = sections(&text).into_iter().filter(|(title, _)| *title == "Examples").flat_map(|(_, lines)| lines);
            let lines = lines.filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
            (command.get_name().to_owned(), lines)
        };
        std::iter::once(&program).chain(program.get_subcommands()).map(of).collect()
    }

    #[test]
    fn every_command_has_examples_that_are_right() {
        for (command, lines) in examples() {
            assert!(!lines.is_empty(), "{command} has no examples");
            for line in lines {
                let words = line.split(' ').skip_while(|word| *word == "sudo").take_while(|word| !word.starts_with(['>', '|']));
                let words: Vec<_> = words.map(std::ffi::OsString::from).collect();
                assert_eq!(words.first().map(|word| word.as_os_str()), Some("b2fuse".as_ref()), "{line}");
                assert!(command == "b2fuse" || words.get(1).is_some_and(|word| *word == *command), "{command}: {line}");
                let parsed = super::super::Args::try_parse_from(super::super::as_subcommand(words)).map(|_| ());
                assert!(parsed.as_ref().err().is_none_or(|error| !error.use_stderr()), "{line}: {parsed:?}");
            }
        }
    }

    #[test]
    fn sections_of_help_fit_a_terminal_of_80_columns() {
        let program = super::super::Args::command();
        for command in std::iter::once(&program).chain(program.get_subcommands()) {
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                let columns = line.chars().count();
                assert!(
                    line.starts_with(' ') || !line.contains('-'),
                    "titles are put in capitals, and an option would not be one any more: {line}"
                );
                assert!(columns <= WIDTH, "{}: {columns} columns, expected at most {WIDTH}: {line}", command.get_name());
            }
        }
        // Likewise what stands in the page of the views as it is written, which is indented by four more.
        let fenced = VIEWS.split("```").skip(1).step_by(2).flat_map(str::lines);
        fenced.for_each(|line| assert!(line.chars().count() <= WIDTH - 6, "{line}"));
    }

    #[test]
    fn hidden_options_are_not_completed() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut super::super::Args::command(), "b2fuse", &mut script);
            let script = String::from_utf8(script).unwrap();
            let kept = without_hidden(&script);
            assert!(script.contains("fake") && !kept.contains("fake"), "{shell}");
            assert!(script.lines().count() - kept.lines().count() <= 1, "{shell}: nothing else is left out");
        }
    }

    #[test]
    fn the_synopsis_has_values_and_arguments() {
        let program = super::super::Args::command();
        let of = |name: &str| {
            let mut program = program.clone();
            program.build();
            synopsis(program.find_subcommand(name).unwrap())
        };
        let mount = of("mount");
        assert!(mount.starts_with("b2fuse mount [-o OPTION,...] [-r] [--show VIEW] "), "{mount}");
        assert!(mount.ends_with(" [-v] [-h] SOURCE MOUNTPOINT") && !mount.contains("fake"), "{mount}");
        assert!(of("check").ends_with(" FRAMES..."), "{}", of("check"));
        assert!(of("cat").ends_with(" FRAME [POSITION...]"), "{}", of("cat"));
    }

    #[test]
    fn a_manual_page_for_each_command() {
        let pages = pages();
        assert_eq!(pages.len(), examples().len() + 1, "and one for the views");
        for Page { name, section, source } in pages {
            let page = String::from_utf8(source).unwrap();
            let has = |part: &str| assert!(page.lines().any(|line| line.starts_with(part)), "{name}: no {part} in\n{page}");
            has(&format!(".TH {name} {section} "));
            has(&format!("{} \\- ", name.replace('-', "\\-")));
            for title in [".SH NAME", ".SH DESCRIPTION", ".SH \"SEE ALSO\""] {
                has(title);
            }
            let of_section: &[_] = match section {
                1 if name == "b2fuse" => &[".SH SYNOPSIS", ".SH OPTIONS", ".SH EXAMPLES"],
                1 => &[".SH SYNOPSIS", ".SH OPTIONS", ".SH ARGUMENTS", ".SH EXAMPLES"],
                _ => &[".SH ERRORS", ".SH LIMITS", ".TP\nESTALE\n"],
            };
            of_section.iter().for_each(|part| assert!(page.contains(part), "{name}: no {part} in\n{page}"));
        }
    }

    #[test]
    fn the_version_names_those_of_the_formats() {
        let version = version();
        assert!(version.starts_with(concat!(env!("CARGO_PKG_VERSION"), "\n")), "{version}");
        assert!(version.contains("frames:  format versions up to 3\n"), "{version}");
        assert!(version.contains("chunks:  format versions up to 6,"), "{version}");
        assert!(version.ends_with("metalayers of version 0"), "{version}");
    }

    #[test]
    fn sections_of_a_text() {
        let text = "JSON:\n  {\n    1\n\nExamples:\n  # a\n  b2fuse a";
        assert_eq!(sections(text), [("JSON", vec!["{", "  1"]), ("Examples", vec!["# a", "b2fuse a"])]);
        assert_eq!(sections(""), []);
    }
}
