"""A judge model of your own behind HTTP: python judge_server_example.py [PORT]"""

import argparse

from flowright import serve_judge_model


class CustomJudgeModel:
    def score(self, prompt: str, completion: str, answer: str, answer_type: str):
        if answer_type == "MATH_EXPRESSIONS":
            ...  # symbolic comparison
        right = bool(answer) and answer.lower() in completion.lower()
        return {
            "score": 0.9 if right else 0.1,
            "explanation": f"the answer is {'there' if right else 'not there'}",
            "detailed_scores": {"correctness": float(right), "clarity": 0.5},
            "confidence": 0.7,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, nargs="?", default=8888)
    serve_judge_model(CustomJudgeModel(), port=parser.parse_args().port)
