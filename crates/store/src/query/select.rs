//! The selected columns, or groups and their aggregates, and their order.

use super::compile::Compiler;
use super::having::{GroupColumns, GroupKey};
use super::{Clause, GroupOrder, QueryProblem, QueryText, QueryTextError, parse};
use sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident,
    OrderByExpr, OrderBySort, SelectItem, Spanned, Value,
};
use sqlparser::tokenizer::Span;
use tapetum_kernels::scan::aggregate::AggregateKind;
use tapetum_kernels::scan::program::Register;
use tapetum_kernels::scan::query::{Aggregate, QueryOutput, RowOrder};
use tapetum_kernels::scan::top::TOP_ROWS_MAX;

const DISTINCT_GROUPS: &str = "groups are distinct by what they are grouped by: leave distinct out";
const GROUPED_BY_FIELDS: &str = "records are grouped by a field or what is computed of one";

pub(super) struct Selected {
    pub output: QueryOutput,
    /// Name, and place in the query's result.
    pub columns: Vec<(String, usize)>,
    pub group_order: GroupOrder,
}

#[derive(PartialEq)]
enum ShownItem {
    Value(Register),
    Aggregate(Aggregate),
}

struct NamedItem {
    name: String,
    /// As it was written, to be found again by `order by`.
    written: String,
    item: ShownItem,
    span: Span,
}

impl<'a> Compiler<'a> {
    pub(super) fn select(&mut self, text: &QueryText<'a>) -> Result<Selected, QueryTextError> {
        (self.clause, self.text) = (Clause::Select, text.select);
        let mut items = Vec::new();
        let (is_distinct, trees) = parse::select_items(Clause::Select, text.select)?;
        for item in trees {
            self.select_item(&item, &mut items)?;
        }
        if items.is_empty() {
            return Err(self.error(Span::empty(), QueryProblem::NothingSelected));
        }
        let has_aggregates = items.iter().any(|item| matches!(item.item, ShownItem::Aggregate(_)));
        let is_grouped = text.group_by.is_some() || text.having.is_some() && !is_distinct || has_aggregates;
        match (is_grouped, is_distinct) {
            (true, true) => Err(self.error(items[0].span, QueryProblem::Unsupported(DISTINCT_GROUPS))),
            (true, false) => {
                let keys = self.keys(text.group_by, &items)?;
                self.groups(text, items, keys)
            }
            (false, true) => {
                let keys = distinct_keys(&items);
                self.groups(text, items, keys)
            }
            (false, false) => self.rows(text, items),
        }
    }

    fn select_item(&mut self, item: &SelectItem, items: &mut Vec<NamedItem>) -> Result<(), QueryTextError> {
        let (tree, name) = match item {
            SelectItem::UnnamedExpr(tree) => (tree, None),
            SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias.value.clone())),
            SelectItem::Wildcard(_) => {
                for field in self.format.fields() {
                    let tree = Expr::Identifier(Ident::new(&*field.name));
                    items.push(self.named(&tree, None)?);
                }
                return Ok(());
            }
            _ => {
                let problem = QueryProblem::Unsupported("an expression is selected, with a name behind as, or *");
                return Err(self.error(item.span(), problem));
            }
        };
        items.push(self.named(tree, name)?);
        Ok(())
    }

    fn named(&mut self, tree: &Expr, name: Option<String>) -> Result<NamedItem, QueryTextError> {
        let written = written(tree);
        let item = match tree {
            Expr::Function(function) if is_aggregate(function) => ShownItem::Aggregate(self.aggregate(function)?),
            tree => {
                let operand = self.expression(tree)?;
                ShownItem::Value(self.register(operand)?)
            }
        };
        let name = name.unwrap_or_else(|| match tree {
            Expr::Identifier(name) => name.value.clone(),
            _ => written.clone(),
        });
        Ok(NamedItem { name, written, item, span: tree.span() })
    }

    pub(super) fn aggregate(&mut self, function: &Function) -> Result<Aggregate, QueryTextError> {
        let span = function.span();
        let mut kind = aggregate_kind(function).unwrap_or(AggregateKind::Count);
        let is_plain = function.filter.is_none()
            && function.over.is_none()
            && function.within_group.is_empty()
            && function.null_treatment.is_none()
            && function.parameters == FunctionArguments::None;
        let argument = match &function.args {
            FunctionArguments::List(FunctionArgumentList { args, clauses, duplicate_treatment })
                if is_plain && clauses.is_empty() =>
            {
                if *duplicate_treatment == Some(DuplicateTreatment::Distinct) {
                    kind = distinct_kind(kind).ok_or_else(|| self.error(span, QueryProblem::DistinctAggregate))?;
                }
                match &args[..] {
                    [FunctionArg::Unnamed(argument)] => argument,
                    _ => return Err(self.error(span, QueryProblem::AggregateArguments)),
                }
            }
            _ => {
                let problem = QueryProblem::Unsupported("an aggregate has one argument, and nothing else");
                return Err(self.error(span, problem));
            }
        };
        match argument {
            FunctionArgExpr::Wildcard if kind == AggregateKind::Count => Ok(Aggregate { kind, register: None }),
            FunctionArgExpr::Expr(tree) => {
                let operand = self.expression(tree)?;
                let span = operand.span;
                let register = self.register(operand)?;
                let of = self.type_of(register);
                match kind.result_type(of) {
                    Some(_) => Ok(Aggregate { kind, register: Some(register) }),
                    None => Err(self.error(span, QueryProblem::AggregateArgument(of.name()))),
                }
            }
            _ => Err(self.error(span, QueryProblem::AggregateArguments)),
        }
    }

    fn rows(&mut self, text: &QueryText<'a>, items: Vec<NamedItem>) -> Result<Selected, QueryTextError> {
        let mut columns: Vec<Register> = Vec::new();
        let mut named = Vec::new();
        for (place, NamedItem { name, item, .. }) in items.iter().enumerate() {
            let ShownItem::Value(register) = item else { unreachable!("rows have no aggregates") };
            columns.push(*register);
            named.push((name.clone(), place));
        }
        let order = match text.order_by {
            None => None,
            Some(order_by) => {
                let (order, is_descending) = self.order(order_by)?;
                let (by, span) = match self.ordered_column(&order.expr, &items)? {
                    Some(column) => (columns[column], order.expr.span()),
                    None => self.ordered_expression(&order.expr, items.len())?,
                };
                if text.limit.is_none_or(|limit| limit > TOP_ROWS_MAX as u64) {
                    return Err(self.error(span, QueryProblem::OrderNeedsLimit(TOP_ROWS_MAX)));
                }
                Some(RowOrder { by, is_descending })
            }
        };
        let output = QueryOutput::Rows { columns, order, limit: text.limit };
        Ok(Selected { output, columns: named, group_order: GroupOrder::default() })
    }

    fn groups(
        &mut self,
        text: &QueryText<'a>,
        items: Vec<NamedItem>,
        keys: Vec<GroupKey>,
    ) -> Result<Selected, QueryTextError> {
        (self.clause, self.text) = (Clause::Select, text.select);
        let mut columns = GroupColumns { keys, ..GroupColumns::default() };
        for NamedItem { name, item, span, .. } in &items {
            let place = match item {
                ShownItem::Aggregate(aggregate) => columns.place_of_aggregate(*aggregate),
                ShownItem::Value(register) => {
                    let place = columns.keys.iter().position(|key| key.register == *register);
                    place.ok_or_else(|| self.error(*span, QueryProblem::NotGrouped))?
                }
            };
            columns.named.push((name.clone(), place));
        }
        let having = text.having.map(|having| self.having(having, &mut columns)).transpose()?;
        let by = match text.order_by {
            None => None,
            Some(order_by) => {
                let (order, is_descending) = self.order(order_by)?;
                let written = written(&order.expr);
                let column = self.ordered_column(&order.expr, &items)?;
                let found = column.or_else(|| items.iter().position(|item| item.written == written));
                let found = found.ok_or_else(|| self.error(order.expr.span(), QueryProblem::OrderOfGroups))?;
                Some((columns.named[found].1, is_descending))
            }
        };
        let GroupColumns { keys, aggregates, named } = columns;
        let keys = keys.iter().map(|key| key.register).collect();
        let group_order = GroupOrder { having, by, limit: text.limit };
        Ok(Selected { output: QueryOutput::Groups { keys, aggregates }, columns: named, group_order })
    }

    /// The keys to group by; none if all records are one group.
    fn keys(&mut self, text: Option<&'a str>, items: &[NamedItem]) -> Result<Vec<GroupKey>, QueryTextError> {
        let Some(text) = text else { return Ok(Vec::new()) };
        (self.clause, self.text) = (Clause::GroupBy, text);
        let mut keys: Vec<GroupKey> = Vec::new();
        for tree in parse::expressions(Clause::GroupBy, text)? {
            let key = match self.grouped_column(&tree, items)? {
                Some(item) => self.key(&items[item].item, &items[item].written),
                None => {
                    let operand = self.expression(&tree)?;
                    let register = self.register(operand)?;
                    self.key(&ShownItem::Value(register), &written(&tree))
                }
            };
            let no_key = || self.error(tree.span(), QueryProblem::Unsupported(GROUPED_BY_FIELDS));
            let key = key.ok_or_else(no_key)?;
            if keys.iter().all(|other| other.register != key.register) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// `None`: it is the same for all records of a group, whatever these are.
    fn key(&self, item: &ShownItem, written: &str) -> Option<GroupKey> {
        match *item {
            ShownItem::Value(register) if !self.is_constant(register) => {
                Some(GroupKey { register, written: written.into() })
            }
            _ => None,
        }
    }

    /// The selected column that a group is named by: its place, from 1 on, or its name, if no field has that.
    fn grouped_column(&self, tree: &Expr, items: &[NamedItem]) -> Result<Option<usize>, QueryTextError> {
        match tree {
            Expr::Nested(inner) => self.grouped_column(inner, items),
            Expr::Value(value) => Ok(place_of(&value.value, items.len())),
            Expr::Identifier(name) if self.format.find(&name.value).is_none() => {
                self.named_column(name, items, QueryProblem::NameOfTwo)
            }
            _ => Ok(None),
        }
    }

    fn named_column(
        &self,
        name: &Ident,
        items: &[NamedItem],
        of_two: QueryProblem,
    ) -> Result<Option<usize>, QueryTextError> {
        let mut named = items.iter().enumerate().filter(|(_, item)| item.name == name.value);
        let Some((found, first)) = named.next() else { return Ok(None) };
        match named.any(|(_, item)| item.item != first.item) {
            true => Err(self.error(name.span, of_two)),
            false => Ok(Some(found)),
        }
    }

    /// The selected column that an order names: by its place, from 1 on, or by its name. As in SQL, that wins over a field's.
    fn ordered_column(&self, tree: &Expr, items: &[NamedItem]) -> Result<Option<usize>, QueryTextError> {
        match tree {
            Expr::Nested(inner) => self.ordered_column(inner, items),
            Expr::Value(value) => {
                let no_place = || self.error(value.span, QueryProblem::OrderConstant(items.len()));
                place_of(&value.value, items.len()).map(Some).ok_or_else(no_place)
            }
            Expr::Identifier(name) => self.named_column(name, items, QueryProblem::OrderByTwo),
            _ => Ok(None),
        }
    }

    /// An order by an expression over a record's fields.
    fn ordered_expression(&mut self, tree: &Expr, columns: usize) -> Result<(Register, Span), QueryTextError> {
        let operand = self.expression(tree)?;
        let span = operand.span;
        let by = self.register(operand)?;
        match self.is_constant(by) {
            true => Err(self.error(span, QueryProblem::OrderConstant(columns))),
            false => Ok((by, span)),
        }
    }

    /// The only order, and whether it goes from the greatest to the least.
    fn order(&mut self, text: &'a str) -> Result<(OrderByExpr, bool), QueryTextError> {
        (self.clause, self.text) = (Clause::OrderBy, text);
        let mut orders = parse::orders(Clause::OrderBy, text)?;
        let order = match (orders.pop(), orders.is_empty()) {
            (Some(order), true) => order,
            (last, _) => {
                let span = last.map_or(Span::empty(), |last| last.expr.span());
                return Err(self.error(span, QueryProblem::OneOrder));
            }
        };
        let is_descending = match (&order.options.sort, order.options.nulls_first, &order.with_fill) {
            (None | Some(OrderBySort::Asc), None | Some(false), None) => false,
            (Some(OrderBySort::Desc), None | Some(false), None) => true,
            _ => return Err(self.error(order.expr.span(), QueryProblem::OneOrder)),
        };
        Ok((order, is_descending))
    }
}

/// An expression as it was written, to be found again: without parentheses around it, and a name without quotes.
pub(super) fn written(tree: &Expr) -> String {
    match tree {
        Expr::Nested(inner) => written(inner),
        Expr::Identifier(name) => name.value.clone(),
        tree => tree.to_string(),
    }
}

/// Which column a number stands for, if there are so many.
fn place_of(value: &Value, columns: usize) -> Option<usize> {
    let Value::Number(digits, _) = value else { return None };
    let place = digits.parse::<usize>().ok()?.checked_sub(1)?;
    (place < columns).then_some(place)
}

/// Every column is grouped by.
fn distinct_keys(items: &[NamedItem]) -> Vec<GroupKey> {
    let mut keys: Vec<GroupKey> = Vec::new();
    for NamedItem { item, written, .. } in items {
        if let ShownItem::Value(register) = *item
            && keys.iter().all(|key| key.register != register)
        {
            keys.push(GroupKey { register, written: written.clone() });
        }
    }
    keys
}

fn aggregate_kind(function: &Function) -> Option<AggregateKind> {
    Some(match &function.name.to_string().to_ascii_lowercase()[..] {
        "count" => AggregateKind::Count,
        "sum" => AggregateKind::Sum,
        "min" => AggregateKind::Min,
        "max" => AggregateKind::Max,
        "avg" => AggregateKind::Average,
        _ => return None,
    })
}

/// The aggregate that takes each value once; `None` where there is none.
fn distinct_kind(kind: AggregateKind) -> Option<AggregateKind> {
    match kind {
        AggregateKind::Count => Some(AggregateKind::CountDistinct),
        AggregateKind::Min | AggregateKind::Max => Some(kind),
        _ => None,
    }
}

pub(super) fn is_aggregate(function: &Function) -> bool {
    aggregate_kind(function).is_some()
}
