//! From a parsed meta command to the store: the request it submits, and the form of its reply.

use tapetum::{Condition, Initial, Request, Terms};

use super::door::Memcached;
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::protocol::base64;
use crate::protocol::meta::{Flags, Line, MetaVerb, SetMode};
use crate::protocol::meta_reply::MetaAnswer;
use crate::protocol::reply::Form;
use crate::protocol::{expiry_from_client, text};
use crate::stats::count;

impl Memcached {
    /// `None` if the command has to wait. `value` is `None` for one that is over the limit.
    pub(super) fn meta_command(
        &mut self,
        line: &Line<'_>,
        value: Option<&[u8]>,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let mut decoded = [0; base64::DECODED_BYTES_MAX];
        let key = match line.flags.base64 {
            true => base64::decode(line.key, &mut decoded).unwrap_or_default(),
            false => line.key,
        };
        match line.verb {
            MetaVerb::Get => self.meta_get(line, key, client, cx),
            MetaVerb::Set => self.meta_set(line, key, value, client, cx),
            MetaVerb::Delete => {
                let (stamp, stale) = (line.flags.stamp, line.flags.stale);
                let expiry = line.flags.touch.map(|seconds| expiry_from_client(seconds, cx.now));
                let request =
                    if stale { Request::Invalidate { key, stamp, expiry } } else { Request::Delete { key, stamp } };
                self.submit_meta(MetaAnswer::Delete { invalidate: stale }, request, line, 0, client, cx)
            }
            MetaVerb::Arithmetic => self.meta_arithmetic(line, key, client, cx),
            MetaVerb::Debug => {
                let terms = Terms { unnoticed: true, ..Terms::default() };
                let bytes = client.value_bytes_expected(cx.gets);
                self.submit_meta(MetaAnswer::Debug, Request::GetAndLease { key, terms }, line, bytes, client, cx)?;
                count(&cx.counters.cmd_meta, 1);
                Some(())
            }
            MetaVerb::NoOp => {
                self.say("MN\r\n", client, cx);
                Some(())
            }
        }
    }

    /// The reply repeats words of the line: they are kept with the request.
    fn submit_meta(
        &mut self,
        answer: MetaAnswer,
        request: Request<'_>,
        line: &Line<'_>,
        bytes: usize,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let form = Form::Meta { answer, now: cx.now };
        self.submit(form, request, line.tail, bytes + line.tail.len(), client, cx)
    }

    fn meta_get(&mut self, line: &Line<'_>, key: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let Flags { vivify, recache, touch, touch_before_recache, touch_after_vivify, unnoticed, .. } = line.flags;
        let expiry = |seconds: Option<i64>| seconds.map(|seconds| expiry_from_client(seconds, cx.now));
        let terms = Terms {
            stale: true,
            recache_before: expiry(recache),
            vivify: vivify.and_then(|seconds| expiry(touch.filter(|_| touch_after_vivify).or(Some(seconds)))),
            touch: expiry(touch),
            touch_first: touch_before_recache,
            unnoticed,
        };
        let bytes = client.value_bytes_expected(cx.gets);
        let answer = MetaAnswer::Get { touch: touch.is_some() };
        self.submit_meta(answer, Request::GetAndLease { key, terms }, line, bytes, client, cx)
    }

    fn meta_set(
        &mut self,
        line: &Line<'_>,
        key: &[u8],
        value: Option<&[u8]>,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let Some(value) = value else {
            self.too_large(key, true, client, cx)?;
            self.say(text::TOO_LARGE, client, cx);
            return Some(());
        };
        let flags = &line.flags;
        // A stamp of 0 is none to an append.
        let stamp = flags.stamp.filter(|&stamp| stamp != 0);
        let condition = match (flags.set_mode(), flags.stamp) {
            (Some(SetMode::Add), _) => Condition::Absent,
            // 0 is no older stamp.
            (_, Some(stamp)) if flags.stale && stamp != 0 => Condition::StampOrOlder(stamp),
            (_, Some(stamp)) => Condition::Stamp(stamp),
            (Some(SetMode::Replace), None) => Condition::Present,
            (_, None) => Condition::Always,
        };
        let expiry = expiry_from_client(flags.touch.unwrap_or(0), cx.now);
        let request = match flags.set_mode() {
            Some(SetMode::Append) => Request::Append { key, value, stamp },
            Some(SetMode::Prepend) => Request::Prepend { key, value, stamp },
            _ => Request::Put { key, value, flags: flags.client_flags, expiry, condition },
        };
        let stamped =
            matches!(request, Request::Put { condition: Condition::Stamp(_) | Condition::StampOrOlder(_), .. });
        self.submit_meta(MetaAnswer::Set { stamped }, request, line, value.len(), client, cx)?;
        count(&cx.counters.cmd_set, 1);
        Some(())
    }

    fn meta_arithmetic(
        &mut self,
        line: &Line<'_>,
        key: &[u8],
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let flags = &line.flags;
        let touched = flags.touch.filter(|_| flags.touch_after_vivify);
        let initial = flags.vivify.map(|seconds| Initial {
            value: flags.initial,
            expiry: expiry_from_client(touched.unwrap_or(seconds), cx.now),
        });
        let decrement = flags.decrements() == Some(true);
        let request = Request::Increment {
            key,
            delta: flags.delta(),
            decrement,
            initial,
            // 0 is none.
            stamp: flags.stamp.filter(|&stamp| stamp != 0),
            touch: flags.touch.map(|seconds| expiry_from_client(seconds, cx.now)),
        };
        self.submit_meta(MetaAnswer::Arithmetic { decrement }, request, line, 0, client, cx)
    }
}
