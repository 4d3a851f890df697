//! Help in its forms: `--help` and `--version`, completions for shells, manual pages; all made from the same definitions.
//!
//! What a command's help says last (`after_long_help`) is sections: a title that ends with a colon, and lines that are indented by
//! two spaces. Every command has one that is called Examples, in which what is no comment (`#`) runs as it stands: tests do so.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{End, Failure, output};
use crate::format::{array, chunk, header};
use crate::store::in_words;
use crate::store::local::system;

/// Print a script that completes b2fuse's commands and options in a shell
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse completions bash >~/.local/share/bash-completion/completions/b2fuse
  b2fuse completions fish >~/.config/fish/completions/b2fuse.fish
  # zsh: into a directory of $fpath
  b2fuse completions zsh >~/.zfunc/_b2fuse")]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages into a directory
///
/// One for b2fuse, and one for each command: b2fuse.1, b2fuse-mount.1 and so on. man(1) finds them in the directories `man1` of its
/// path, such as those below.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse man ~/.local/share/man/man1
  # For all users
  sudo b2fuse man /usr/local/share/man/man1")]
pub(super) struct Manual {
    /// Where to; made if there is none
    dir: PathBuf,
}

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

pub(super) fn completions(args: &Completions) -> End {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Args::command(), "b2fuse", &mut script);
    output::written(io::stdout().write_all(&script)).into()
}

pub(super) fn manual(args: &Manual) -> End {
    write_pages(&args.dir).into()
}

fn write_pages(dir: &Path) -> Result<(), Failure> {
    for (name, page) in pages() {
        system::write_output(dir, OsStr::new(&name), &page)
            .map_err(|error| Failure::new(&dir.join(&name), format_args!("cannot be written: {}", in_words(&error))))?;
    }
    Ok(())
}

/// Names of files, and what is in them.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut program = super::Args::command();
    program.build();
    let commands: Vec<_> = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    std::iter::once(program).chain(commands).map(page).collect()
}

fn page(command: clap::Command) -> (String, Vec<u8>) {
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
    } else {
        end.control("SH", ["SEE ALSO"]);
        end.text([roman("b2fuse(1)")]);
    }
    let rest = command.after_long_help(None::<&str>).version(None::<&str>).long_version(None::<&str>);
    let mut out = Vec::new();
    // Into memory, where nothing fails.
    let _ = Man::new(rest).source(concat!("b2fuse ", env!("CARGO_PKG_VERSION"))).manual("b2fuse").render(&mut out);
    out.extend(end.to_roff().bytes());
    (format!("{name}.1"), out)
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
                assert!(line.len() <= 96, "too long for a terminal: {line}");
            }
        }
    }

    #[test]
    fn a_manual_page_for_each_command() {
        let pages = pages();
        assert_eq!(pages.len(), examples().len());
        for (name, page) in pages {
            let page = String::from_utf8(page).unwrap();
            let called = name.strip_suffix(".1").unwrap();
            let has = |part: &str| assert!(page.lines().any(|line| line.starts_with(part)), "{name}: no {part} in\n{page}");
            has(&format!(".TH {called} 1 "));
            has(&format!("{} \\- ", called.replace('-', "\\-")));
            for title in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", ".SH EXAMPLES"] {
                has(title);
            }
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
