//! Bodies of fuzz targets: what a stranger may send, as far as it is taken apart before a store is asked.

use arrow_flight::FlightData;
use arrow_flight::utils::flight_data_to_batches;
use tapetum_service::request::Request;

use crate::actions;
use crate::command::Command;
use crate::messages;
use crate::prepared::Prepared;
use crate::ticket::{TicketOffice, Work};

const OPENING: u64 = 5;

/// Bytes as a ticket, and as the contents of a sealed one: what is read is written again as the same.
pub fn ticket(bytes: &[u8]) {
    let office = TicketOffice::new([7; 16]);
    assert!(office.check(OPENING, bytes).is_err(), "nobody guesses a code");
    let sealed = office.seal(OPENING, bytes);
    let Ok(body) = office.check(OPENING, &sealed) else { return };
    let again = office.sign(OPENING, body.user.as_deref(), &body.work);
    assert_eq!(format!("{:?}", office.check(OPENING, &again)), format!("{:?}", Ok::<_, ()>(&body)));
    let work = body.work;
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
        Ok(Command::Query(query)) => {
            let query = query.query("key: key bytes; value: value bytes".into());
            drop(query.and_then(|query| query.words.compile()));
        }
        Ok(Command::Items(items)) => drop(items.range.range()),
        Ok(Command::Put(_)) | Err(_) => {}
    }
}

/// Bytes as messages of rows: the head's length, the head, the body. A message that passes is read, or refused by the library.
pub fn rows(bytes: &[u8]) {
    let mut messages = Vec::new();
    let mut rest = bytes;
    while let Some((length, more)) = rest.split_first() {
        let (head, more) = more.split_at((usize::from(*length) * 4).min(more.len()));
        let body = more.len().min(64);
        messages.push(FlightData {
            data_header: head.to_vec().into(),
            data_body: more[..body].to_vec().into(),
            ..FlightData::default()
        });
        rest = &more[body..];
    }
    let messages: Vec<_> = messages.into_iter().take_while(|message| messages::check(message).is_ok()).collect();
    drop(flight_data_to_batches(&messages));
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
