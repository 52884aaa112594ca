"""A source of problems: `nextturn data data.yaml` makes conversations about them."""

PROBLEMS = [
    ("A saddle costs 40 and a bell costs 6. How much do both cost?", "40 + 6 = 46", "46"),
    ("A tour has 3 stages. Every stage is 20 km long. How long is the tour?", "3 * 20 = 60", "60"),
    ("Ann rides to her 4 friends, who live 5 km apart, one after the other. How far does she ride?", "4 * 5 = 20", "20"),
]


class Problems:
    def __iter__(self):
        """Yield a row for each problem, always the same ones. The solution may have several lines."""
        for question, solution, answer in PROBLEMS:
            yield {"question": question, "solution": solution, "answer": answer}
