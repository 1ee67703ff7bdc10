# SPDX-License-Identifier: Apache-2.0
"""What an engine of several ranks has in place of what one rank has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gs_train.engine.all_rows import AllRows
from gs_train.engine.in_rounds import InRounds
from gs_train.engine.lookahead import Lookahead
from gs_train.engine.pace import DrawingPace, clock_of
from gs_train.engine.placement import Placement, Tools
from gs_train.engine.shared_planner import SharedPlanner
from gs_train.engine.shared_views import SharedViews
from gs_train.engine.view_costs import LAG, ViewCosts
from gs_train.engine.view_news import ViewNews
from gs_train.ranks.view_columns import ViewColumns
from gs_train.renderers import Renderer
from gs_train.rows.operations import Model
from gs_train.world.protocol import World


class Sharing(NamedTuple):
    """How ranks share batches.

    Attributes:
        world: all ranks.
        cuts_views: whether views that are left over are cut into crops; else ranks are idle, and a
            run leaves the bits of one rank whatever its batches are.
    """

    world: World
    cuts_views: bool = True


class Together(NamedTuple):
    """Parts that know each other.

    Attributes:
        columns: of the views: a checkpoint needs them as it needs their costs.
        news: what ranks tell each other about these.
    """

    lookahead: Lookahead
    planner: SharedPlanner
    drawing: InRounds
    columns: ViewColumns
    news: ViewNews

    @classmethod
    def of(
        cls,
        model: Model,
        renderer: Renderer,
        placements: Sequence[Placement],
        tools: Tools,
        all_rows: AllRows,
        costs: ViewCosts,
        sharing: Sharing,
    ) -> Together:
        """Those of an engine.

        Args:
            model, renderer, placements, tools: as `Engine`'s.
            all_rows: lists all rows where that takes less.
            costs: of the views.
        """
        world, columns = sharing.world, ViewColumns(LAG)
        news = ViewNews(world, costs, columns)
        views = SharedViews(costs, columns, world.size, cuts=sharing.cuts_views)
        lookahead = Lookahead(
            model, renderer, tools.lanes, lambda some, ahead: views.of(some, ahead=ahead)
        )
        pace = DrawingPace(clock_of(model.device))
        planner = SharedPlanner(
            *(model, renderer, placements, lookahead, all_rows, costs), views, news, pace, world
        )
        drawing = InRounds(model, renderer, tools.trace, costs, views, news, pace, world)
        return cls(lookahead, planner, drawing, columns, news)
