//! Markdown as it is written in this crate, to roff: headings, paragraphs, lists, tables of two columns, fenced text, `code`, *emphasis*.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// The body of a manual page. The text's title is left out; what comes before its first section is the description.
pub(super) fn to_roff(text: &str) -> Roff {
    let mut out = Roff::new();
    out.control("SH", ["DESCRIPTION"]);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with("# ") || is_rule(line) {
            continue;
        }
        if let Some(title) = line.strip_prefix("## ") {
            out.control("SH", [title.to_uppercase().as_str()]);
        } else if let Some(title) = line.strip_prefix("### ") {
            out.control("SS", [title]);
        } else if line.starts_with("```") {
            out.control("RS", ["4"]).control("nf", []);
            for line in lines.by_ref().take_while(|line| !line.starts_with("```")) {
                out.text([roman(line)]);
            }
            out.control("fi", []).control("RE", []);
        } else if let Some((term, meaning)) = row(line) {
            // The row above the rule names the columns.
            if !lines.peek().is_some_and(|next| is_rule(next)) {
                out.control("TP", []).text(inlines(term)).text(inlines(meaning));
            }
        } else {
            let item = line.strip_prefix("- ");
            let mut paragraph = item.unwrap_or(line).to_owned();
            while let Some(more) = lines.next_if(|next| continues(next)) {
                paragraph.push(' ');
                paragraph.push_str(more.trim_start());
            }
            match item {
                Some(_) => out.control("IP", ["\\(bu", "2"]),
                None => out.control("PP", []),
            };
            out.text(inlines(&paragraph));
        }
    }
    out
}

/// Whether a line belongs to the paragraph or the item before it.
fn continues(line: &str) -> bool {
    !line.is_empty() && !["#", "- ", "|", "```"].iter().any(|begin| line.starts_with(begin))
}

/// The two cells of a table's row.
fn row(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")
}

/// What divides a table's head from its body.
fn is_rule(line: &str) -> bool {
    line.starts_with("| ---")
}

fn inlines(text: &str) -> Vec<Inline> {
    let mut all = Vec::new();
    for (nth, part) in text.split('`').enumerate() {
        if nth % 2 == 1 {
            all.push(bold(part));
            continue;
        }
        for (nth, part) in part.split('*').enumerate().filter(|(_, part)| !part.is_empty()) {
            all.push(if nth % 2 == 1 { italic(part) } else { roman(part) });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks() {
        let text = "# Title\n\nOne\ntwo.\n\n## Part\n\n- an *item*,\n  longer\n- `.b`\n\n### Sub\n\n| a | b |\n| --- | --- |\n| `X` | it's |\n\n\
                    ```text\n.no --control\n```\n";
        let expected = ".SH DESCRIPTION\n.PP\nOne two.\n.SH PART\n.IP \\(bu 2\nan \\fIitem\\fR, longer\n.IP \\(bu 2\n\\fB.b\\fR\n\
                        .SS Sub\n.TP\n\\fBX\\fR\nit's\n.RS 4\n.nf\n\\&.no \\-\\-control\n.fi\n.RE\n";
        assert_eq!(to_roff(text).to_roff(), expected);
    }
}
