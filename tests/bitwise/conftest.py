"""Which instruction sets and how many combinations the run compared."""


def pytest_terminal_summary(terminalreporter):
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, line in report.user_properties:
                    if name == "compared":
                        terminalreporter.write_line(f"bitwise: {line}")
