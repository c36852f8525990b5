//! Bodies of fuzz targets: what a stranger may send, as far as it is taken apart before a store is asked.

use tapetum_service::request::Request;

use crate::actions;
use crate::command::Command;
use crate::prepared::Prepared;
use crate::ticket::{TicketOffice, Work};

const OPENING: u64 = 5;

/// Bytes as a ticket, and as the work of a sealed one: what is read is written again as the same.
pub fn ticket(bytes: &[u8]) {
    let office = TicketOffice::new([7; 16]);
    assert!(office.check(OPENING, bytes).is_err(), "nobody guesses a code");
    let sealed = office.seal(OPENING, bytes);
    let Ok(work) = office.check(OPENING, &sealed) else { return };
    let again = office.sign(OPENING, &work);
    assert_eq!(format!("{:?}", office.check(OPENING, &again)), format!("{:?}", Ok::<_, ()>(&work)));
    // A query is compiled, or refused.
    let _ = work.schema();
    let at = work.at(9);
    assert!(matches!(at, Work::Constants(_)) || at.freeze().is_some() || !is_rows(&at));
}

fn is_rows(work: &Work) -> bool {
    matches!(work, Work::Request { request: Request::Query(_) | Request::Scan { .. } | Request::List { .. }, .. })
}

/// Bytes as a command in JSON.
pub fn command(bytes: &[u8]) {
    match Command::parse(bytes) {
        Ok(Command::Query(query)) => drop(query.query("key: key bytes; value: value bytes".into()).words.compile()),
        Ok(Command::Items(items)) => drop(items.range.range()),
        Ok(Command::Put(_)) | Err(_) => {}
    }
}

/// Bytes as a prepared statement's handle, and as an action: its name's length, its name, its body.
pub fn action(bytes: &[u8]) {
    if let Ok(prepared) = Prepared::of_handle(bytes) {
        let again = Prepared::of_handle(&prepared.to_handle());
        assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, ()>(&prepared)));
        drop(prepared.values());
    }
    drop(actions::request_of(bytes));
    actions::parse_all(bytes);
}
