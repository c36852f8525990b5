//! Shared by the commands of all dialects: submitting requests, sending errands, replies that need nothing from the store.

use tapetum::Expiry;
use tapetum::Request;

use super::door::{Memcached, MemcachedOptions};
use super::slots::{NextOfKey, ObservedRequest};
use super::watching::ObservedStore;
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::protocol::delete_all_at;
use crate::protocol::kinds;
use crate::protocol::reply::{Form, TextAnswer};
use crate::protocol::text;
use crate::stats::{self, count};
use crate::store::errands::{Answer, Errand};
use tapetum_service::escapes;

impl Memcached {
    /// Submits one request that holds `bytes` of memory until it is answered. `None` if it must wait.
    pub(super) fn submit(
        &mut self,
        form: Form,
        request: Request<'_>,
        key: &[u8],
        bytes: usize,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let joins = matches!(request, Request::Append { .. } | Request::Prepend { .. });
        let next = match joins && !client.has_asked() {
            true => NextOfKey::Append,
            false if request.reads() => NextOfKey::Get,
            false => NextOfKey::Change,
        };
        // A get that asks for room takes effect when it is allowed, so a change of its item waits for that. So does a request behind an
        // append that asks.
        if self.slots.may_overtake(request.key(), next) {
            client.block();
            return None;
        }
        self.look_up_for_watchers(form, &request, client, cx)?;
        let mut admission = client.admit(self.load(), form.is_get(), bytes, cx)?;
        if joins {
            admission = admission.to_join(cx);
        }
        self.looked_up = false;
        let number = self.slots.push(form, key, admission.charge_bytes);
        self.slots.last_came(cx.came);
        if cx.figures.observers.wants(kinds::REQUESTS) {
            let store = ObservedStore::of(&request, cx.now);
            self.slots.last_is_observed(ObservedRequest { key: request.key().to_vec(), store });
        }
        if form.is_get() || joins {
            self.slots.last_may_ask(request.key(), joins);
        }
        client.submit(number, self.options.keyspace, request, admission, cx);
        Some(())
    }

    /// In memcached every request of a key begins with a get of it, which watchers see. In Tapetum only gets read the item, so for watchers
    /// a get is submitted before any other request. `None` if it must wait.
    fn look_up_for_watchers(
        &mut self,
        form: Form,
        request: &Request<'_>,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let key = request.key();
        let is_wanted = !form.is_get() && !key.is_empty() && cx.figures.observers.wants(kinds::FETCHERS);
        if !is_wanted || self.looked_up {
            return Some(());
        }
        let admission = client.admit(self.load(), true, client.value_bytes_expected(cx.gets), cx)?;
        let number = self.slots.push(Form::Lookup, b"", admission.charge_bytes);
        self.slots.last_is_observed(ObservedRequest { key: key.to_vec(), store: None });
        self.slots.last_may_ask(key, false);
        client.submit(number, self.options.keyspace, Request::Get { key }, admission, cx);
        self.looked_up = true;
        Some(())
    }

    pub(super) fn get(
        &mut self,
        form: Form,
        key: &[u8],
        touch: Option<Expiry>,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let request = match touch {
            None => Request::Get { key },
            Some(expiry) => Request::GetAndTouch { key, expiry },
        };
        let bytes = client.value_bytes_expected(cx.gets);
        self.submit(form, request, key, bytes, client, cx)?;
        count(if touch.is_some() { &cx.counters.cmd_touch } else { &cx.counters.cmd_get }, 1);
        Some(())
    }

    /// Also deletes the old value: a client that meant to replace it would take it for the new one.
    pub(super) fn too_large(
        &mut self,
        key: &[u8],
        delete: bool,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        if delete {
            self.submit(Form::Silent, Request::Delete { key, stamp: None }, key, 0, client, cx)?;
        }
        count(&cx.counters.store_too_large, 1);
        Some(())
    }

    /// Flushes and figures see everything before them and nothing after. `None` if an earlier request has no answer yet.
    pub(super) fn all_answered(&mut self, client: &mut Client) -> Option<()> {
        client.wait_for_all(self.load()).then_some(())
    }

    pub(super) fn flush_all(
        &mut self,
        form: Form,
        delay: i64,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        self.all_answered(client)?;
        self.submit(form, Request::DeleteAll { at: delete_all_at(delay, cx.now) }, b"", 0, client, cx)?;
        count(&cx.counters.cmd_flush, 1);
        Some(())
    }

    /// Sends an errand. It sees everything before it, and everything after it waits.
    pub(super) fn errand(
        &mut self,
        errand: Errand,
        form: Form,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        self.errand_numbered(errand, form, client, cx).map(|_| ())
    }

    /// Like [`Memcached::errand`]. Returns the request's number, and whether the errand was sent; if not, it was answered.
    pub(super) fn errand_numbered(
        &mut self,
        errand: Errand,
        form: Form,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<(u32, bool)> {
        self.all_answered(client)?;
        let admission = client.admit(self.load(), false, 0, cx)?;
        let number = self.slots.push(form, b"", admission.charge_bytes);
        client.set_barrier();
        let was_sent = client.send(number, errand, admission, cx);
        if !was_sent {
            let reply = if form == Form::Silent { Vec::new() } else { text::BUSY.into() };
            self.slots.complete_with(number, reply, &mut client.out, cx.pool);
        }
        Some((number, was_sent))
    }

    /// The lines of `stats detail dump`, if there is room for them.
    pub(super) fn prefix_lines(&mut self, client: &mut Client, cx: &Context<'_>) -> Option<Vec<u8>> {
        let observers = &cx.figures.observers;
        client.admit_reply(self.load(), observers.prefix_lines_bytes_max(), cx)?;
        Some(observers.prefix_lines())
    }

    /// A reply that needs nothing from the store.
    pub(super) fn answer(
        &mut self,
        form: Form,
        client: &mut Client,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.slots.answer(&mut client.out, cx.pool, form, write);
    }

    /// Like [`Memcached::answer`], with a line of text.
    pub(super) fn say(&mut self, line: &str, client: &mut Client, cx: &mut Context<'_>) {
        self.answer(Form::Silent, client, cx, |out| out.extend_from_slice(line.as_bytes()));
    }
}

/// The figures of `stats`, with the keyspace that its listener serves.
pub(super) fn general_lines(options: &MemcachedOptions, cx: &Context<'_>) -> Vec<(String, String)> {
    let mut lines = stats::lines(cx.figures.general_of(options.keyspace.id(), cx.now));
    lines.extend(cx.figures.device_lines());
    lines.push(("keyspace".into(), escapes::word(&options.keyspace_name)));
    lines
}

/// The form of an errand's reply. `memlimit`: the errand is memcached's own, and so are the words for its failures.
pub(super) fn errand_form(memlimit: bool, noreply: bool) -> Form {
    match noreply {
        true => Form::Silent,
        false => Form::Text { answer: TextAnswer::Errand { memlimit }, noreply },
    }
}

/// The reply to an errand, in the words of memcached.
pub(super) fn errand_reply(form: Form, answer: &Answer) -> Vec<u8> {
    let Form::Text { answer: TextAnswer::Errand { memlimit }, .. } = form else { return Vec::new() };
    match answer {
        Answer::Lines(lines) => {
            let mut out = Vec::new();
            push_lines(&mut out, lines);
            out
        }
        Answer::Done => b"OK\r\n".to_vec(),
        Answer::Listed { .. } | Answer::LoggedIn(_) => unreachable!("lists and logins have their own replies"),
        Answer::Failed(error) => {
            let word = if memlimit { "MEMLIMIT_ADJUST_FAILED" } else { "SERVER_ERROR" };
            format!("{word} {error}\r\n").into_bytes()
        }
    }
}

/// Figures as text has them.
pub(super) fn push_lines(out: &mut Vec<u8>, lines: &[(String, String)]) {
    for (name, value) in lines {
        out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
    }
    out.extend_from_slice(b"END\r\n");
}
