//! The table of docs/SECURITY.md: which role each request needs, by the code that asks for it.

use tapetum_server::doors::memcached::needs::{self, EXAMPLES, Need, Over};
use tapetum_server::protocol::{Parsed, text};
use tapetum_service::examples;
use tapetum_service::request::{Role, Scope};

const BEGIN: &str = "<!-- roles -->\n";
const END: &str = "<!-- end of roles -->";

/// The table.
fn table() -> String {
    let mut lines = String::from("| request | over | read | write | admin |\n|---|---|---|---|---|\n");
    let mut line = |request: String, over: &str, least: Role| {
        let may = Role::ALL.map(|role| if role >= least { "yes" } else { "" });
        lines += &format!("| {request} | {over} | {} | {} | {} |\n", may[0], may[1], may[2]);
    };
    for request in examples::requests("k") {
        let (role, scope) = request.needs();
        let shown = format!("{request:?}");
        let name = shown.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        let over = match scope {
            Scope::Store => "the store",
            Scope::Keyspace(_) => "the keyspace",
            Scope::Both(..) => "both keyspaces",
            Scope::AnyKeyspace => "any keyspace: those are shown",
        };
        line(format!("`{name}`"), over, role);
    }
    for example in EXAMPLES {
        let Parsed::Command { command, .. } = text::parse(example.as_bytes(), 0, 1 << 20) else {
            panic!("{example:?} is a command");
        };
        let Need::Role(role, over) = needs::of_text(&command) else { panic!("{example:?} needs a role") };
        let over = if over == Over::Store { "the store" } else { "the keyspace" };
        let words = example.lines().next().unwrap_or_default();
        line(format!("memcached's `{words}`"), over, role);
    }
    lines
}

#[test]
fn the_document_has_the_roles_of_the_code() {
    let path = crate::workspace::root().join("docs/SECURITY.md");
    let document = std::fs::read_to_string(path).unwrap();
    let behind = document.split_once(BEGIN).expect("the document has a place for the table").1;
    let found = behind.split_once(END).expect("the table has an end").0;
    let expected = table();
    assert!(found.trim() == expected.trim(), "docs/SECURITY.md needs this table:\n{expected}");
}
