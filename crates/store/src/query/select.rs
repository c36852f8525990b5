//! What is selected: columns, or groups and their aggregates; and in which order.

use super::compile::{Compiler, OperandValue};
use super::{Clause, GroupOrder, QueryProblem, QueryText, QueryTextError, parse};
use sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, OrderByExpr,
    OrderBySort, SelectItem, Spanned,
};
use sqlparser::tokenizer::Span;
use tapetum_kernels::scan::aggregate::AggregateKind;
use tapetum_kernels::scan::program::Register;
use tapetum_kernels::scan::query::{Aggregate, QueryOutput, RowOrder};
use tapetum_kernels::scan::top::TOP_ROWS_MAX;

pub(super) struct Selected {
    pub output: QueryOutput,
    /// Name, and place in the query's result.
    pub columns: Vec<(String, usize)>,
    pub group_order: GroupOrder,
}

enum Item {
    Value(Register),
    Aggregate(Aggregate),
}

struct NamedItem {
    name: String,
    /// As it was written, to be found again by `order by`.
    written: String,
    item: Item,
    span: Span,
}

impl<'a> Compiler<'a> {
    pub(super) fn select(&mut self, text: &QueryText<'a>) -> Result<Selected, QueryTextError> {
        (self.clause, self.text) = (Clause::Select, text.select);
        let mut items = Vec::new();
        for item in parse::select_items(Clause::Select, text.select)? {
            self.select_item(&item, &mut items)?;
        }
        if items.is_empty() {
            return Err(self.error(Span::empty(), QueryProblem::NothingSelected));
        }
        let is_grouped = text.group_by.is_some() || items.iter().any(|item| matches!(item.item, Item::Aggregate(_)));
        if is_grouped { self.groups(text, items) } else { self.rows(text, items) }
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
        let written = tree.to_string();
        let item = match tree {
            Expr::Function(function) if is_aggregate(function) => Item::Aggregate(self.aggregate(function)?),
            tree => {
                let operand = self.expression(tree)?;
                Item::Value(self.register(operand)?)
            }
        };
        let name = name.unwrap_or_else(|| match tree {
            Expr::Identifier(name) => name.value.clone(),
            _ => written.clone(),
        });
        Ok(NamedItem { name, written, item, span: tree.span() })
    }

    fn aggregate(&mut self, function: &Function) -> Result<Aggregate, QueryTextError> {
        let span = function.span();
        let kind = aggregate_kind(function).unwrap_or(AggregateKind::Count);
        let is_plain = function.filter.is_none()
            && function.over.is_none()
            && function.within_group.is_empty()
            && function.null_treatment.is_none()
            && function.parameters == FunctionArguments::None;
        let argument = match &function.args {
            FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses })
                if is_plain && clauses.is_empty() =>
            {
                match &args[..] {
                    [FunctionArg::Unnamed(argument)] => argument,
                    _ => return Err(self.error(span, QueryProblem::AggregateArgument("none"))),
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
            _ => Err(self.error(span, QueryProblem::AggregateArgument("*"))),
        }
    }

    fn rows(&mut self, text: &QueryText<'a>, items: Vec<NamedItem>) -> Result<Selected, QueryTextError> {
        let mut columns: Vec<Register> = Vec::new();
        let mut named = Vec::new();
        for (place, NamedItem { name, item, .. }) in items.into_iter().enumerate() {
            let Item::Value(register) = item else { unreachable!("rows have no aggregates") };
            columns.push(register);
            named.push((name, place));
        }
        let order = match text.order_by {
            None => None,
            Some(order_by) => {
                let (order, is_descending) = self.order(order_by)?;
                let operand = self.expression(&order.expr)?;
                let span = operand.span;
                if text.limit.is_none_or(|limit| limit > TOP_ROWS_MAX as u64) {
                    return Err(self.error(span, QueryProblem::OrderNeedsLimit(TOP_ROWS_MAX)));
                }
                Some(RowOrder { by: self.register(operand)?, is_descending })
            }
        };
        let output = QueryOutput::Rows { columns, order, limit: text.limit };
        Ok(Selected { output, columns: named, group_order: GroupOrder::default() })
    }

    fn groups(&mut self, text: &QueryText<'a>, items: Vec<NamedItem>) -> Result<Selected, QueryTextError> {
        let keys = match text.group_by {
            Some(group_by) => self.keys(group_by)?,
            None => Vec::new(),
        };
        (self.clause, self.text) = (Clause::Select, text.select);
        let (mut aggregates, mut columns) = (Vec::new(), Vec::new());
        for NamedItem { name, item, span, .. } in &items {
            let place = match item {
                Item::Aggregate(aggregate) => {
                    aggregates.push(*aggregate);
                    keys.len() + aggregates.len() - 1
                }
                Item::Value(register) => {
                    let place = keys.iter().position(|key| key == register);
                    place.ok_or_else(|| self.error(*span, QueryProblem::NotGrouped))?
                }
            };
            columns.push((name.clone(), place));
        }
        let by = match text.order_by {
            None => None,
            Some(order_by) => {
                let (order, is_descending) = self.order(order_by)?;
                let written = order.expr.to_string();
                let found = items.iter().position(|item| item.name == written || item.written == written);
                let found = found.ok_or_else(|| self.error(order.expr.span(), QueryProblem::OrderOfGroups))?;
                Some((columns[found].1, is_descending))
            }
        };
        let group_order = GroupOrder { by, limit: text.limit };
        Ok(Selected { output: QueryOutput::Groups { keys, aggregates }, columns, group_order })
    }

    fn keys(&mut self, text: &'a str) -> Result<Vec<Register>, QueryTextError> {
        (self.clause, self.text) = (Clause::GroupBy, text);
        let mut keys = Vec::new();
        for tree in parse::expressions(Clause::GroupBy, text)? {
            let operand = self.expression(&tree)?;
            // A number is no column's place here, as it is in SQL.
            if let OperandValue::Literal(_) = operand.value {
                return Err(self.error(
                    operand.span,
                    QueryProblem::Unsupported("records are grouped by a field or what is computed of one"),
                ));
            }
            let key = self.register(operand)?;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Ok(keys)
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

pub(super) fn is_aggregate(function: &Function) -> bool {
    aggregate_kind(function).is_some()
}
