//! Parses transactions: paragraphs, comparisons, operations.

use clap::{Parser, error::ErrorKind};
use leasehold_client_cache::{
    Compare, CompareTarget, LeaseId, LeaseName, NodePath, Operation, Relation, Revision, Token, Transaction,
};

use crate::{arguments, lease_id, words, wrong_usage};

/// A piece of the input and its place.
#[derive(Debug, PartialEq)]
pub(super) struct Piece {
    /// The place in errors, such as `line 3`.
    pub(super) place: String,
    pub(super) text: String,
}

/// Splits the input into paragraphs: comparisons, and the operations of either branch.
pub(super) fn paragraphs(input: &str) -> Result<[Vec<Piece>; 3], String> {
    let mut paragraphs = [const { Vec::new() }; 3];
    let mut paragraph = 0;
    for (at, line) in input.lines().enumerate() {
        let (place, text) = (format!("line {}", at + 1), line.trim());
        if text.is_empty() {
            paragraph += 1;
        } else if text.starts_with('#') {
            continue;
        } else if let Some(pieces) = paragraphs.get_mut(paragraph) {
            pieces.push(Piece { place, text: text.to_owned() });
        } else {
            return Err(format!("{place}: a fourth paragraph; write comparisons, then both branches of operations"));
        }
    }
    Ok(paragraphs)
}

/// Parses the paragraphs of a transaction.
pub(super) fn transaction([compares, then, otherwise]: [Vec<Piece>; 3]) -> Result<Transaction, String> {
    fn each<T>(pieces: Vec<Piece>, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        let one = |Piece { place, text }| parse(&text).map_err(|error| format!("{place}: {error}"));
        pieces.into_iter().map(one).collect()
    }
    Ok(Transaction {
        compares: each(compares, compare)?,
        then: each(then, operation)?,
        otherwise: each(otherwise, operation)?,
    })
}

/// `value("/a") = "x"`
fn compare(text: &str) -> Result<Compare, String> {
    let form = "write it as value(\"/a\") = \"x\"";
    let (what, rest) = text.split_once('(').ok_or_else(|| format!("comparison {text:?}: no (; {form}"))?;
    let (path, rest) = word(rest.trim_start(), &[')'])?;
    let path = arguments::path(&path).map_err(|error| error.to_string())?;
    let closed = rest.trim_start().strip_prefix(')');
    let rest = closed.ok_or_else(|| format!("comparison {text:?}: no ) after the path; {form}"))?;
    let (relation, rest) = relation(rest.trim_start())?;
    let (than, rest) = word(rest.trim_start(), &[])?;
    if !rest.trim().is_empty() {
        return Err(format!("comparison {text:?}: {:?} follows the value; quote values with blanks", rest.trim()));
    }
    let target = target(what.trim(), relation, &than)?;
    Ok(Compare { path, target })
}

/// Returns the text in quotes, or up to a blank or one of `ends`, and the rest.
fn word<'a>(text: &'a str, ends: &[char]) -> Result<(String, &'a str), String> {
    let end = match text.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            closing(text, quote).ok_or_else(|| format!("quote {quote} of {text}: not closed"))?
        }
        _ => text.find(|c: char| c.is_whitespace() || ends.contains(&c)).unwrap_or(text.len()),
    };
    let (quoted, rest) = text.split_at(end);
    let words = words::split(quoted).map_err(|error| error.to_string())?;
    match <[String; 1]>::try_from(words) {
        Ok([word]) => Ok((word, rest)),
        Err(_) => Err(format!("no word before {rest:?}; write a word, in quotes if it has blanks")),
    }
}

/// The position after the quote that closes the first one.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    let mut rest = text.char_indices().skip(1);
    let (at, _) = rest.find(|(_, c)| {
        let closes = *c == quote && !is_escaped;
        is_escaped = quote == '"' && *c == '\\' && !is_escaped;
        closes
    })?;
    Some(at + quote.len_utf8())
}

fn relation(text: &str) -> Result<(Relation, &str), String> {
    let all = [("!=", Relation::NotEqual), ("=", Relation::Equal), ("<", Relation::Less), (">", Relation::Greater)];
    let found = all.into_iter().find_map(|(sign, relation)| Some((relation, text.strip_prefix(sign)?)));
    found.ok_or_else(|| format!("relation {text:?}: not =, !=, < or >"))
}

fn target(what: &str, relation: Relation, than: &str) -> Result<CompareTarget, String> {
    let number = || than.parse::<u64>().map_err(|_| format!("{what}: {than:?} is not a number"));
    match what {
        "value" | "val" => Ok(CompareTarget::Value(relation, than.to_owned().into())),
        "version" | "ver" => Ok(CompareTarget::Version(relation, number()?)),
        "create" | "c" => Ok(CompareTarget::CreateRevision(relation, Revision(number()?))),
        "mod" | "m" => Ok(CompareTarget::ModifyRevision(relation, Revision(number()?))),
        "exists" => match (relation, than) {
            (Relation::Equal, "true") | (Relation::NotEqual, "false") => Ok(CompareTarget::Exists(true)),
            (Relation::Equal, "false") | (Relation::NotEqual, "true") => Ok(CompareTarget::Exists(false)),
            _ => Err(format!("exists: {relation} {than:?} is not = or != with \"true\" or \"false\"")),
        },
        "locked" => match relation {
            Relation::Equal => Ok(CompareTarget::Locked(true, Token(number()?))),
            Relation::NotEqual => Ok(CompareTarget::Locked(false, Token(number()?))),
            _ => Err(format!("locked: {relation} {than:?} is not = or != with a token")),
        },
        _ => Err(format!("comparison of {what:?}: not value, version, create, mod, exists or locked")),
    }
}

/// One operation of a transaction
#[derive(Debug, Parser)]
#[command(
    no_binary_name = true,
    name = "",
    override_usage = "put PATH VALUE [--lease ID | --lease-name NAME], or del [-r] PATH"
)]
#[command(disable_help_flag = true, disable_help_subcommand = true, disable_version_flag = true)]
enum TxnLine {
    /// Set a node's value
    Put {
        #[arg(value_parser = arguments::path)]
        path: NodePath,
        #[arg(allow_negative_numbers = true)]
        value: String,
        #[arg(long, value_name = "ID", value_parser = lease_id::parse)]
        lease: Option<LeaseId>,
        #[arg(long, value_name = "NAME", conflicts_with = "lease")]
        lease_name: Option<LeaseName>,
    },
    /// Remove a node
    #[command(alias = "rm")]
    Del {
        #[arg(value_parser = arguments::path)]
        path: NodePath,
        #[arg(short, long)]
        recursive: bool,
    },
}

fn operation(text: &str) -> Result<Operation, String> {
    let words = words::split(text).map_err(|error| error.to_string())?;
    match TxnLine::try_parse_from(words) {
        Ok(TxnLine::Put { path, value, lease, lease_name }) => {
            let attach = lease_id::attach(lease, lease_name);
            Ok(Operation::Put { path, value: value.into(), attach })
        }
        Ok(TxnLine::Del { path, recursive }) => Ok(Operation::Delete { path, recursive }),
        Err(error) => Err(match error.kind() {
            ErrorKind::InvalidSubcommand => format!("operation {text:?}: not put or del"),
            _ => wrong_usage::failure(&error).message,
        }),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_client_cache::Attach;

    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    #[test]
    fn comparisons_are_written_as_for_etcdctl() {
        let (a, five) = (|| path("/a"), Revision(5));
        let cases = [
            (r#"value("/a") = "x""#, Compare::value(a(), Relation::Equal, "x")),
            (r#"val("a")!="two words""#, Compare::value(a(), Relation::NotEqual, "two words")),
            (r#"value(/a) < '"'"#, Compare::value(a(), Relation::Less, "\"")),
            (r#"value("/a") > "a \"b\"""#, Compare::value(a(), Relation::Greater, "a \"b\"")),
            (r#"value("/a") = """#, Compare::value(a(), Relation::Equal, "")),
            (r#"version("/a") > "0""#, Compare::version(a(), Relation::Greater, 0)),
            (r"ver( '/a' ) = 3", Compare::version(a(), Relation::Equal, 3)),
            (r#"mod("/a") = "5""#, Compare::modify_revision(a(), Relation::Equal, five)),
            (r#"create("/a") < "5""#, Compare::create_revision(a(), Relation::Less, five)),
            (r#"exists("/a (b)") = "true""#, Compare::exists(path("/a (b)"))),
            (r#"exists("/a") != "true""#, Compare::absent(a())),
            (r#"locked("/a") = "7""#, Compare::locked(a(), Token(7))),
            (r#"locked(/a) = 7"#, Compare::locked(a(), Token(7))),
        ];
        for (text, expected) in cases {
            assert_eq!(compare(text).as_ref(), Ok(&expected), "{text}");
            assert_eq!(compare(&expected.to_string()), Ok(expected), "it reads what it says");
        }
    }

    #[test]
    fn malformed_comparison_is_refused_with_its_problem() {
        let cases = [
            ("value", "no (; write it as"),
            ("value(\"/a\"", "no ) after the path"),
            ("value(\"/a) = x", "quote \" of"),
            ("value() = x", "no word before"),
            ("value(/a) ~ x", "not =, !=, < or >"),
            ("value(/a) =", "no word before"),
            ("value(/a) = x y", "follows the value"),
            ("version(/a) = x", "\"x\" is not a number"),
            ("mod(/a) = -1", "\"-1\" is not a number"),
            ("lease(/a) = 1", "not value, version, create, mod, exists or locked"),
            ("locked(/a) > 1", "not = or != with a token"),
            ("locked(/a) = x", "\"x\" is not a number"),
            ("exists(/a) < true", "not = or !="),
            ("value(/a//b) = x", "empty component"),
        ];
        for (text, expected) in cases {
            let error = compare(text).expect_err("it is none");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn operations_are_puts_and_dels() {
        let put = |value: &'static str, attach| Operation::Put { path: path("/a"), value: value.into(), attach };
        let del = |recursive| Operation::Delete { path: path("/a"), recursive };
        let cases = [
            ("put /a x", put("x", Attach::Nothing)),
            ("put a 'two words'", put("two words", Attach::Nothing)),
            ("put /a -1 --lease 7b", put("-1", Attach::Lease(LeaseId(0x7b)))),
            (
                "put /a x --lease-name server1Lease",
                put("x", Attach::LeaseNamed("server1Lease".parse().expect("a name"))),
            ),
            ("del /a # gone", del(false)),
            ("rm -r /a", del(true)),
        ];
        for (text, expected) in cases {
            assert_eq!(operation(text), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("get /a", "operation \"get /a\": not put or del"),
            ("put /a", "VALUE"),
            ("put /a//b x", "empty component"),
            ("del", "PATH"),
            ("put /a 'x", "not closed"),
            ("put /a x --lease-name ''", "expected 1 to 256"),
            ("put /a x --lease 7b --lease-name n", "cannot be used with"),
        ] {
            let error = operation(text).expect_err("it is none");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn paragraphs_end_with_an_empty_line_and_may_be_empty() {
        let place = |pieces: &[Piece]| pieces.iter().map(|piece| piece.place.clone()).collect::<Vec<_>>();
        let all = paragraphs("# why\nvalue(/a) = x\n\n\nput /a y\n").expect("three");
        assert_eq!(
            all.each_ref().map(|pieces| place(pieces)),
            [vec!["line 2".to_owned()], vec![], vec!["line 5".to_owned()]]
        );
        assert_eq!(paragraphs("\nput /a y").map(|all| all.map(|pieces| pieces.len())), Ok([0, 1, 0]));
        assert_eq!(paragraphs("").map(|all| all.map(|pieces| pieces.len())), Ok([0, 0, 0]));
        let error = paragraphs("a\n\nb\n\nc\n\n\nd").expect_err("four");
        assert!(error.starts_with("line 8: a fourth paragraph"), "{error}");
        let error = transaction(paragraphs("\nput /a y\nget /a").expect("three")).expect_err("a get");
        assert!(error.starts_with("line 3: operation \"get /a\": not put"), "{error}");
    }
}
