"""A judge of user turns. Name it under `probe:` in a recipe: `judge: "my_judge:Asks"`."""


class Asks:
    version = "1"  # change it whenever a label could change: labels are stored by it

    def labels(self, cases):
        """Return a label for each user turn (the list is in docs/judges.md), or None to leave the turn unscored."""
        return [self.label(case.user_turn, [message["content"] for message in case.messages]) for case in cases]

    def label(self, turn, before):
        if not turn.strip():
            return None
        if turn in before:
            return "user_restatement"
        return "genuine_followup" if "?" in turn else "generic_filler"
