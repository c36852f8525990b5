//! Lists of keys, which may be long. A step of a list is an errand; the next step is sent when the client has taken most of the last one's
//! text. So a list holds the text of one step, and other errands run between steps.
//!
//! ```text
//! command ─► errand ─► text of some keys ─► out ─► taken by the client ─► errand ─► …  ─► END
//! ```
//! A list is one request of the client: everything after it waits, another list too. A few clients at a time may have a list in progress;
//! others get memcached's answer that the crawler is busy. Between two steps a list holds nothing of the store, so a client that leaves or
//! stops reading is closed like any other.

use tapetum::ListCursor;

use super::door::Memcached;
use super::submit::errand_form;
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::doors::door::Step;
use crate::net::out::Pool;
use crate::protocol::dump::{CRAWLER_BUSY, KeyDump};
use crate::protocol::text;
use crate::store::errands::{Answer, Errand, ListOrder, ListSeat};

/// With more unsent bytes than this, the next step waits.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// A list in progress.
pub(super) struct Listing {
    /// The number of its slot.
    number: u32,
    dump: KeyDump,
    /// The next step, while it is not running.
    paused: Option<ListOrder>,
    /// `None` for `stats cachedump`, which is short.
    _seat: Option<ListSeat>,
}

impl Listing {
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }
}

impl Memcached {
    /// Begins a list. `None` if it must wait.
    pub(super) fn list(&mut self, dump: KeyDump, client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        if client.is_sent_whole() {
            self.say(text::NOT_OVER_UDP, client, cx);
            return Some(());
        }
        let is_short = matches!(dump, KeyDump::Cache { .. });
        let seat = if is_short { None } else { cx.errands.list_seat() };
        if !is_short && seat.is_none() {
            self.say(CRAWLER_BUSY, client, cx);
            return Some(());
        }
        let order = ListOrder { keyspace: self.options.keyspace, cursor: ListCursor::default(), dump };
        let (number, was_sent) = self.errand_numbered(Errand::List(order), errand_form(false, false), client, cx)?;
        self.listing = was_sent.then_some(Listing { number, dump, paused: None, _seat: seat });
        Some(())
    }

    /// Sends the next step of a list, if the client has room for it.
    pub(super) fn go_on_listing(&mut self, client: &mut Client, cx: &mut Context<'_>) -> Step {
        client.block();
        let Some(listing) = self.listing.as_mut().filter(|_| client.out.unsent_bytes() <= UNSENT_BYTES_MAX) else {
            return Step::Stop(0);
        };
        if let Some(order) = listing.paused.take()
            && !client.send_again(listing.number, Errand::List(order), cx)
        {
            let number = listing.number;
            self.listing = None;
            self.slots.complete_with(number, text::BUSY.into(), &mut client.out, cx.pool);
        }
        Step::Stop(0)
    }

    /// A step is done.
    pub(super) fn listed(&mut self, number: u32, answer: Answer, client: &mut Client, pool: &mut Pool) {
        let Some(listing) = &mut self.listing else { unreachable!("a list is under way") };
        let last = match answer {
            Answer::Listed { text, next: Some(order) } if !client.closing => {
                client.out.append_buffer(pool, text);
                listing.paused = Some(order);
                return;
            }
            Answer::Listed { mut text, .. } => {
                text.extend_from_slice(listing.dump.end());
                text
            }
            Answer::Failed(error) => format!("SERVER_ERROR {error}\r\n").into_bytes(),
            Answer::Lines(_) | Answer::Done | Answer::LoggedIn(_) => unreachable!("a list was asked for"),
        };
        self.listing = None;
        self.slots.complete_with(number, last, &mut client.out, pool);
    }
}
