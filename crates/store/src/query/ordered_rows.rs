//! The groups that were asked for, in their order: they are few, so the host gathers them, chooses, and puts them in order.

use super::GroupOrder;
use std::cmp::Ordering;
use tapetum_kernels::scan::{Machine, OwnedScalar, Scalar};

/// Rows on their way to whoever shows them, all of them gathered before if they have an order or a limit.
pub struct OrderedRows {
    order: GroupOrder,
    /// Keeps groups.
    having: Option<Machine>,
    gathered: Vec<Vec<Option<OwnedScalar>>>,
}

impl OrderedRows {
    pub fn new(order: GroupOrder) -> OrderedRows {
        let having = order.having.clone().map(Machine::of_rows);
        OrderedRows { order, having, gathered: Vec::new() }
    }

    /// Shows a row, keeps it for the end, or leaves it out.
    pub fn push(&mut self, values: &[Option<Scalar<'_>>], show: &mut dyn FnMut(&[Option<Scalar<'_>>])) {
        if self.having.as_mut().is_some_and(|having| !having.keeps(values)) {
            return;
        }
        match self.order.by.is_some() || self.order.limit.is_some() {
            true => self.gathered.push(values.iter().map(|value| value.map(Scalar::to_owned)).collect()),
            false => show(values),
        }
    }

    pub fn finish(mut self, show: &mut dyn FnMut(&[Option<Scalar<'_>>])) {
        if let Some((by, is_descending)) = self.order.by {
            self.gathered.sort_by(|a, b| compare(&a[by], &b[by], is_descending));
        }
        let limit = self.order.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        for row in self.gathered.iter().take(limit) {
            let values: Vec<Option<Scalar<'_>>> =
                row.iter().map(|value| value.as_ref().map(OwnedScalar::as_scalar)).collect();
            show(&values);
        }
    }
}

/// NULLs come last, whichever way the order goes.
fn compare(a: &Option<OwnedScalar>, b: &Option<OwnedScalar>, is_descending: bool) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => {
            let ordering = a.as_scalar().compare(b.as_scalar()).unwrap_or(Ordering::Equal);
            if is_descending { ordering.reverse() } else { ordering }
        }
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}
