//! From a parsed text command to the store: the request it submits, and the form of its reply.

use tapetum::{Condition, Request};

use super::door::{Memcached, ThenClose};
use super::needs;
use super::submit::{errand_form, general_lines, push_lines};
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::protocol::dump::KeyDump;
use crate::protocol::reply::{Form, TextAnswer};
use crate::protocol::text::Size;
use crate::protocol::{VERSION, expiry_from_client, text};
use crate::stats::count;
use crate::store::errands::Errand;

impl Memcached {
    /// `None` if the command has to wait; else how much of its frame is taken.
    pub(super) fn text_command(
        &mut self,
        command: text::TextCommand<'_>,
        frame: &[u8],
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<usize> {
        use text::TextCommand;
        let need = needs::of_text(&command);
        if !self.access.allows(need) {
            let is_quiet = matches!(
                command,
                TextCommand::Store { noreply: true, .. }
                    | TextCommand::TooLarge { noreply: true, .. }
                    | TextCommand::Increment { noreply: true, .. }
                    | TextCommand::Touch { noreply: true, .. }
                    | TextCommand::Delete { noreply: true, .. }
                    | TextCommand::FlushAll { noreply: true, .. }
                    | TextCommand::Resize { noreply: true, .. }
                    | TextCommand::CacheMemlimit { noreply: true, .. }
            );
            self.refuse_text(need, is_quiet, frame, client, cx);
            if let TextCommand::Get { goes_on: true, .. } | TextCommand::GetAndTouch { goes_on: true, .. } = command {
                // The rest of the line is keys.
                self.skipped_line = Some(ThenClose(false));
            }
            return Some(frame.len());
        }
        match command {
            TextCommand::Get { keys, stamps, goes_on } => {
                return Some(self.many_start(keys, frame, goes_on, None, stamps));
            }
            TextCommand::GetAndTouch { keys, exptime, stamps, goes_on } => {
                let touch = Some(expiry_from_client(exptime, cx.now));
                return Some(self.many_start(keys, frame, goes_on, touch, stamps));
            }
            store @ TextCommand::Store { .. } => self.text_store(store, client, cx)?,
            TextCommand::Meta { line, value } => self.meta_command(&line, value, client, cx)?,
            TextCommand::TooLarge { key, delete, noreply } => {
                self.too_large(key, delete, client, cx)?;
                if !noreply {
                    self.say(text::TOO_LARGE, client, cx);
                }
            }
            TextCommand::Increment { key, delta, decrement, noreply } => {
                let request = Request::Increment { key, delta, decrement, initial: None, stamp: None, touch: None };
                let answer = TextAnswer::Increment { decrement };
                self.submit(Form::Text { answer, noreply }, request, key, 0, client, cx)?;
            }
            TextCommand::Touch { key, exptime, noreply } => {
                let request = Request::Touch { key, expiry: expiry_from_client(exptime, cx.now) };
                self.submit(Form::Text { answer: TextAnswer::Touch, noreply }, request, key, 0, client, cx)?;
                count(&cx.counters.cmd_touch, 1);
            }
            TextCommand::Delete { key, noreply } => {
                let request = Request::Delete { key, stamp: None };
                self.submit(Form::Text { answer: TextAnswer::Delete, noreply }, request, key, 0, client, cx)?;
            }
            TextCommand::FlushAll { noreply, .. } if !self.options.may_flush => {
                count(&cx.counters.cmd_flush, 1);
                if !noreply {
                    self.say("CLIENT_ERROR flush_all not allowed\r\n", client, cx);
                }
            }
            TextCommand::FlushAll { delay, noreply } => {
                self.flush_all(Form::Text { answer: TextAnswer::FlushAll, noreply }, delay, client, cx)?;
                self.audit_last(frame, client);
            }
            TextCommand::Verbosity { noreply: false } => self.say("OK\r\n", client, cx),
            TextCommand::Verbosity { noreply: true } | TextCommand::Refused { complaint: None } => {}
            TextCommand::Refused { complaint: Some(complaint) } => self.say(complaint, client, cx),
            TextCommand::RefusedLine { complaint, close } => self.refuse_line(complaint, close, client, cx),
            TextCommand::Version => self.say(&format!("VERSION {VERSION}\r\n"), client, cx),
            TextCommand::Stats { argument } => {
                self.text_stats(argument, client, cx)?;
                self.audit_answered(need, frame, client);
            }
            TextCommand::Resize { size, bytes, noreply } => {
                self.errand(Errand::Resize { size, bytes }, errand_form(false, noreply), client, cx)?;
                self.audit_last(frame, client);
            }
            TextCommand::CacheMemlimit { bytes, noreply } => {
                let errand = Errand::Resize { size: Size::Memory, bytes };
                self.errand(errand, errand_form(true, noreply), client, cx)?;
                self.audit_last(frame, client);
            }
            TextCommand::Watch { kinds } => {
                self.watch(kinds, client, cx);
                self.audit_answered(need, frame, client);
            }
            TextCommand::List { dump } => self.list(dump, client, cx)?,
            TextCommand::Quit => client.close(),
        }
        Some(frame.len())
    }

    /// `None` if the storage command has to wait.
    fn text_store(&mut self, command: text::TextCommand<'_>, client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let text::TextCommand::Store { verb, key, flags, exptime, stamp, value, noreply } = command else {
            unreachable!("it is one")
        };
        let expiry = expiry_from_client(exptime, cx.now);
        let put = |condition| Request::Put { key, value, flags, expiry, condition };
        let request = match verb {
            text::TextVerb::Set => put(Condition::Always),
            text::TextVerb::Add => put(Condition::Absent),
            text::TextVerb::Replace => put(Condition::Present),
            text::TextVerb::Cas => put(Condition::Stamp(stamp)),
            text::TextVerb::Append => Request::Append { key, value, stamp: None },
            text::TextVerb::Prepend => Request::Prepend { key, value, stamp: None },
        };
        let answer = TextAnswer::Store { stamped: verb == text::TextVerb::Cas };
        self.submit(Form::Text { answer, noreply }, request, key, value.len(), client, cx)?;
        count(&cx.counters.cmd_set, 1);
        Some(())
    }

    /// Answers a line that has not ended, and throws the rest of it away.
    fn refuse_line(&mut self, complaint: &str, close: bool, client: &mut Client, cx: &mut Context<'_>) {
        self.skipped_line = Some(ThenClose(close));
        if close {
            client.note_error();
        }
        self.say(complaint, client, cx);
    }

    /// `None` if it has to wait.
    fn stats_detail(&mut self, word: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let observers = &cx.figures.observers;
        match word {
            b"on" | b"off" => {
                observers.count_prefixes(word == b"on");
                self.say("OK\r\n", client, cx);
            }
            b"dump" => {
                let lines = self.prefix_lines(client, cx)?;
                self.answer(Form::Silent, client, cx, |out| out.extend_from_slice(&lines));
            }
            _ => self.say(text::BAD_DETAIL, client, cx),
        }
        Some(())
    }

    fn text_stats(&mut self, argument: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let mut words = text::split(argument);
        let lines = match words.next().unwrap_or_default() {
            b"inspect" => {
                let keyspace = self.options.keyspace;
                let locate = |key: &[u8]| Errand::Locate { keyspace, key: key.to_vec() };
                let errand = words.next().map_or(Errand::Inspect, locate);
                return self.errand(errand, errand_form(false, false), client, cx);
            }
            b"conns" => return self.errand(Errand::Connections, errand_form(false, false), client, cx),
            b"detail" => return self.stats_detail(words.next().unwrap_or_default(), client, cx),
            b"cachedump" => match KeyDump::of_cachedump(words) {
                Ok(dump) => return self.list(dump, client, cx),
                Err(complaint) => {
                    self.say(complaint, client, cx);
                    return Some(());
                }
            },
            b"" => {
                self.all_answered(client)?;
                general_lines(&self.options, cx)
            }
            b"reset" => {
                cx.figures.reset();
                self.say("RESET\r\n", client, cx);
                return Some(());
            }
            other => match cx.figures.group(other) {
                Some(lines) => lines,
                None => {
                    self.say(text::ERROR, client, cx);
                    return Some(());
                }
            },
        };
        self.answer(Form::Silent, client, cx, |out| push_lines(out, &lines));
        Some(())
    }
}
